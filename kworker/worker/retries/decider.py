"""What becomes of runs that failed, and of those that wait until something is well again."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf

import structlog

from kworker.core.failure import Failure
from kworker.core.outcome import DeadLettered, Output, Results, RetryScheduled
from kworker.core.record import Partition, Record
from kworker.worker.retries.circuit_breaker import CircuitBreaker
from kworker.worker.retries.dead_letter_limit import DeadLetterLimit
from kworker.worker.retries.failure_log import FailureLog, FailureLogPolicy
from kworker.worker.retries.outputs import FailureOutputs
from kworker.worker.retries.policy import STANDSTILL_S, GiveUpRetrying, RetryLater, RetryPolicy

_LOG = structlog.get_logger()

# As somebody asked: no sign that something is broken, and nothing to try again.
_DELIBERATE = frozenset({"operator", "expired"})


Verdict = RetryScheduled | DeadLettered | float
"""A letter that the record ends with; or when it runs again, in monotonic seconds."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What would be a dead letter, were the breaker not open."""

    record: Record
    failure: Failure
    reason: str


class RetryDecider:
    """Decides by policy, breaker and standstills, and has the letters written.

    Owned by the poll thread. A record that waits in memory stays parked in its lane; who
    waits for the breaker or for what is unavailable is told by `wake`.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        letters: FailureOutputs,
        breaker: DeadLetterLimit | None,
        route_of: Callable[[str], str],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._policy = policy
        self._letters = letters
        self._breaker = breaker
        self._route_of = route_of
        self._wall = wall
        self._log = FailureLog(FailureLogPolicy())
        self._routes: dict[str, CircuitBreaker] = {}
        self._held: dict[Partition, deque[_Held]] = {}
        self._woken: list[Record] = []

    # -- of a run that ended ----------------------------------------------------------

    def judge(self, record: Record, error: BaseException, now: float) -> Verdict:
        """The letter that the record ends with; or the time when it runs again, parked.

        That is infinite for one that waits until `wake` returns it.
        """
        failure = Failure.of(error)
        if failure.kind != "unavailable":
            decision = self._policy.decide(failure, record.attempt)
        elif self._route(record).raised(record, failure.name, now):
            self._log.again(record, failure, "it waits until that is back", now)
            return inf
        else:
            decision = self._policy.again(STANDSTILL_S, record.attempt)
        match decision:
            case RetryLater():
                return self._again(record, failure, decision, now)
            case GiveUpRetrying(reason):
                return self._die(record, failure.with_stack(error), reason, now)

    def succeeded(self, records: list[Record]) -> None:
        """So many ended well; what waited for that goes on."""
        if self._breaker is not None:
            self._breaker.succeeded(len(records))
            if self._held and not self._breaker.open:
                _LOG.warning("the breaker closes: records succeed again")
                self._woken += [held.record for held in self._let_go()]
        if not self._routes:
            return
        for record in records:
            route = self._route(record)
            if route.succeeded(1):
                _LOG.warning("what was unavailable is back: the records that waited go on")
                self._woken += route.let_go()

    def shorten(self, record: Record) -> bool:
        """Whether its letter, too large for its topic as that is now, could be cut to fit."""
        assert isinstance(record.outcome, RetryScheduled | DeadLettered)
        [letter] = record.outcome.outputs
        cut = self._letters.cut(letter)
        if cut is letter or not self._letters.fits(cut):
            return False
        record.outcome.outputs = [cut]
        return True

    def refused(self, record: Record) -> None:
        """What a run led to was refused for good: if it ended well, it did not."""
        if self._breaker is not None and isinstance(record.outcome, Results):
            self._breaker.took_back()

    def _again(self, record: Record, failure: Failure, again: RetryLater, now: float) -> Verdict:
        what_next = f"runs again in {again.after_s:g} s"
        if again.delay_s is None:
            self._log.again(record, failure, what_next, now)
            record.attempt = again.attempt
            return now + again.after_s
        due_ms = int((self._wall() + again.after_s) * 1000)
        letter = self._letters.waiting(record, failure, again.delay_s, again.attempt, due_ms)
        if not self._letters.fits(letter):
            return self._die(record, _too_large(letter, failure), "unpublishable", now)
        self._log.again(record, failure, what_next, now)
        return RetryScheduled([letter])

    def _die(self, record: Record, failure: Failure, reason: str, now: float) -> Verdict:
        if self._breaker is None or reason in _DELIBERATE:
            return self._bury(record, failure, reason, now)
        if not self._breaker.died(now):
            held = self._held.setdefault(record.partition, deque())
            held.append(_Held(record, failure, reason))
            self._log.again(record, failure, f"{reason}; held, since the breaker is open", now)
            return inf
        if self._breaker.open:
            _LOG.error("the breaker opens: too many dead letters; what would be one is held")
        return self._bury(record, failure, reason, now)

    def _bury(self, record: Record, failure: Failure, reason: str, now: float) -> DeadLettered:
        self._log.dead(record, failure, reason, now)
        now_ms = int(self._wall() * 1000)
        letter = self._letters.dead(record, failure, reason, record.attempt, now_ms)
        return DeadLettered([letter])

    # -- of what waits ----------------------------------------------------------------

    @property
    def circuit_open(self) -> bool:
        """True if any circuit is open: then `may_run` is to be called for each record."""
        return any(route.unavailable for route in self._routes.values())

    def may_run(self, record: Record) -> bool:
        """Returns True unless the record's circuit is open and it is not the probe."""
        return self._route(record).may_run(record)

    def set_aside(self, record: Record) -> None:
        """Keeps a record that may not run; the caller parks it until `wake` returns it."""
        self._route(record).set_aside(record)

    def wake(self, now: float, in_hand: int) -> list[Record]:
        """Parked records whose time has come by what happened; those not parked are ignored."""
        for route in self._routes.values():
            if (probe := route.probe(now, in_hand=in_hand)) is not None:
                self._woken.append(probe)
        if self._held and self._breaker is not None and self._breaker.try_now(now):
            self._woken += [held.popleft().record for held in self._held.values() if held]
        woken, self._woken = self._woken, []
        return woken

    def accept_dead(self, now: float) -> list[Record]:
        """What the breaker holds may die after all, which closes it; they are no more parked."""
        if self._breaker is not None:
            self._breaker.reset()
        accepted = [held for held in self._let_go() if held.record.partition.open]
        for held in accepted:
            held.record.outcome = self._bury(held.record, held.failure, held.reason, now)
        return [held.record for held in accepted]

    def forget(self, partition: Partition) -> None:
        """It is given up; what waited of it is dropped with its lanes."""
        self._held.pop(partition, None)
        for route in self._routes.values():
            route.forget(partition)

    @property
    def problems(self) -> list[str]:
        """What is wrong now, a line each."""
        down = [
            f"{name} is unavailable: {handler} takes nothing, and one record probes each"
            f" {STANDSTILL_S:g} s"
            for handler, route in self._routes.items()
            for name in route.unavailable
        ]
        if self._breaker is not None and self._breaker.open:
            held = sum(map(len, self._held.values()))
            down.append(
                f"the breaker is open: {held} records that would be dead letters are held and"
                " tried; `kworker resume --accept-dead` lets them die"
            )
        return down

    def _let_go(self) -> Iterable[_Held]:
        held, self._held = self._held, {}
        return [one for of_partition in held.values() for one in of_partition]

    def _route(self, record: Record) -> CircuitBreaker:
        topic = record.partition.topic if record.envelope is None else record.source.topic
        handler = self._route_of(topic)
        return self._routes.get(handler) or self._routes.setdefault(handler, CircuitBreaker())


def _too_large(letter: Output, failure: Failure) -> Failure:
    """A failure after which the record has no room in its delay topic, with all its headers."""
    text = (
        f"{failure.message}; its retry has up to {letter.size} bytes, too many for {letter.topic}"
    )
    return replace(failure, kind="unpublishable", message=text)
