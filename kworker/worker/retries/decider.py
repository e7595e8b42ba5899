"""The decision after a failed run, and the records that wait in memory for another run."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf

import structlog

from kworker.core.failure import Failure
from kworker.core.outcome import DeadLettered, Output, RetryScheduled, Succeeded
from kworker.core.record import Partition, Record
from kworker.instance.scoreboard import RecentLetter
from kworker.worker.retries.circuit_breaker import CircuitBreaker
from kworker.worker.retries.dead_letter_limit import DeadLetterLimit
from kworker.worker.retries.failure_log import FailureLog, FailureLogPolicy
from kworker.worker.retries.outputs import FailureOutputs
from kworker.worker.retries.policy import PROBE_EVERY_S, GiveUpRetrying, RetryLater, RetryPolicy

_LOG = structlog.get_logger()

# Reasons that a person has set: they count for no breaker, and are not held.
_DELIBERATE = frozenset({"operator", "expired"})


Verdict = RetryScheduled | DeadLettered | float
"""The output that the record ends with; or the time of its next run, in monotonic seconds."""


@dataclass(frozen=True, slots=True)
class HeldFailure:
    """A record that failed for good, but is held because there are too many dead letters."""

    record: Record
    failure: Failure
    reason: str


class RetryDecider:
    """Decides after a failed run if its record is retried, waits in memory or is a dead letter.

    It asks the retry policy, the circuit breakers and the dead-letter limit, and builds the
    outputs. Owned by the poll thread. While a record waits in memory, the later records of its key
    wait, too. `wake` returns the waiting records that are to run now.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        outputs: FailureOutputs,
        breaker: DeadLetterLimit | None,
        handler_of: Callable[[str], str],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._policy = policy
        self._outputs = outputs
        self._breaker = breaker
        self._handler_of = handler_of
        self._wall = wall
        self._log = FailureLog(FailureLogPolicy())
        self._circuits: dict[str, CircuitBreaker] = {}  # by handler
        self._held: dict[Partition, deque[HeldFailure]] = {}
        self._woken: list[Record] = []

    @property
    def recent_letters(self) -> Iterable[RecentLetter]:
        """The last dead letters, the newest at the end."""
        return self._log.recent

    # -- a run has ended --------------------------------------------------------------

    def judge(self, record: Record, error: BaseException, now: float) -> Verdict:
        """Returns the output with which the record ends, or the time of its next run.

        The time is infinite for a record that waits in memory until `wake` returns it.
        """
        failure = Failure.of(error)
        if failure.kind != "unavailable":
            decision = self._policy.decide(failure, record.attempt)
        elif self._circuit(record).raised(record, failure.name, now):
            self._log.retried(
                record, failure, "the record waits until its dependency is available", now
            )
            return inf
        else:
            decision = self._policy.again(PROBE_EVERY_S, record.attempt)
        match decision:
            case RetryLater():
                return self._again(record, failure, decision, now)
            case GiveUpRetrying(reason):
                return self._die(record, failure.with_stack(error), reason, now)

    def succeeded(self, records: list[Record]) -> None:
        """Counts records that succeeded.

        If this ends the hold on dead letters, or closes a circuit, `wake` returns the records that
        waited for that.
        """
        self.count_succeeded(len(records))
        if not self._circuits:
            return
        for record in records:
            circuit = self._circuit(record)
            if circuit.succeeded(1):
                _LOG.warning(
                    "an unavailable dependency is available again; the waiting records run now"
                )
                self._woken += circuit.let_go()

    @property
    def has_circuits(self) -> bool:
        """True if a circuit breaker exists: `succeeded` has to know which records succeeded."""
        return bool(self._circuits)

    def count_succeeded(self, number: int) -> None:
        """Does what `succeeded` does while there is no circuit breaker."""
        if self._breaker is not None:
            self._breaker.succeeded(number)
            if self._held and not self._breaker.open:
                _LOG.warning(
                    "the dead-letter breaker closes, because records succeed again; held records"
                    " run again"
                )
                self._woken += [held.record for held in self._release_held()]

    def shorten(self, record: Record) -> bool:
        """Shortens the stack trace and the message in a record's retry or dead letter.

        Returns True if the retry or dead letter fits its topic after that. Changes nothing and
        returns False if it still does not fit, or if it needed no cut.
        """
        assert isinstance(record.outcome, RetryScheduled | DeadLettered)
        [letter] = record.outcome
        cut = self._outputs.cut(letter)
        if cut is letter or not self._outputs.fits(cut):
            return False
        record.outcome = type(record.outcome)([cut])
        return True

    def refused(self, record: Record) -> None:
        """Tells the dead-letter limit that this record was no success after all.

        Called for a record whose outputs cannot be published. Does nothing if the outputs are not
        results.
        """
        if self._breaker is not None and isinstance(record.outcome, Succeeded):
            self._breaker.retract_success()

    def _again(self, record: Record, failure: Failure, again: RetryLater, now: float) -> Verdict:
        what_next = f"runs again in {again.after_s:g} s"
        if again.delay_s is None:
            self._log.retried(record, failure, what_next, now)
            record.attempt = again.attempt
            return now + again.after_s
        due_ms = int((self._wall() + again.after_s) * 1000)
        letter = self._outputs.retry(record, failure, again.delay_s, again.attempt, due_ms)
        if not self._outputs.fits(letter):
            return self._die(record, _too_large(letter, failure), "unpublishable", now)
        self._log.retried(record, failure, what_next, now)
        return RetryScheduled([letter])

    def _die(self, record: Record, failure: Failure, reason: str, now: float) -> Verdict:
        if self._breaker is None or reason in _DELIBERATE:
            return self._dead_letter(record, failure, reason, now)
        if not self._breaker.died(now):
            held = self._held.setdefault(record.partition, deque())
            held.append(HeldFailure(record, failure, reason))
            self._log.retried(
                record,
                failure,
                f"no dead letter yet ({reason}): held, since the dead-letter breaker is open",
                now,
            )
            return inf
        if self._breaker.open:
            _LOG.error(
                "the dead-letter breaker (dead_letter.breaker) opens, because too many records"
                " fail for good; further ones are held in memory and tried again until the"
                " cause is repaired, or until `kworker resume --accept-dead`"
            )
        return self._dead_letter(record, failure, reason, now)

    def _dead_letter(
        self, record: Record, failure: Failure, reason: str, now: float
    ) -> DeadLettered:
        now_ms = int(self._wall() * 1000)
        self._log.dead(record, failure, reason, now, now_ms)
        letter = self._outputs.dead_letter(record, failure, reason, record.attempt, now_ms)
        return DeadLettered([letter])

    # -- records that wait ------------------------------------------------------------

    @property
    def circuit_open(self) -> bool:
        """True if the circuit of any handler is open. Only then need `may_run` be called."""
        return any(circuit.unavailable for circuit in self._circuits.values())

    def may_run(self, record: Record) -> bool:
        """Returns True if the circuit of the record's handler is closed or the record probes it."""
        return self._circuit(record).may_run(record)

    def set_aside(self, record: Record) -> None:
        """Keeps a record that may not run now. The caller lets it wait until `wake` returns it."""
        self._circuit(record).set_aside(record)

    def wake(self, now: float, in_hand: int) -> list[Record]:
        """Returns records that waited in memory and are to run now.

        The caller ignores records that have stopped waiting meanwhile, such as rejected ones.
        """
        for circuit in self._circuits.values():
            if (probe := circuit.probe(now, in_hand=in_hand)) is not None:
                self._woken.append(probe)
        if self._held and self._breaker is not None and self._breaker.try_due(now):
            self._breaker.tried(now)
            self._woken += [held.popleft().record for held in self._held.values() if held]
        woken, self._woken = self._woken, []
        return woken

    def accept_dead(self) -> list[HeldFailure]:
        """Lets dead letters pass again, and returns what was held.

        The caller passes to `dead_letter` those whose records still wait, and ignores the others,
        such as records that were rejected meanwhile.
        """
        if self._breaker is not None:
            self._breaker.reset()
        return self._release_held()

    def dead_letter(self, held: HeldFailure, now: float) -> DeadLettered:
        """Returns the dead letter of a record that was held."""
        return self._dead_letter(held.record, held.failure, held.reason, now)

    def forget(self, partition: Partition) -> None:
        """Drops the waiting records of a revoked partition."""
        self._held.pop(partition, None)
        for circuit in self._circuits.values():
            circuit.forget(partition)

    @property
    def problems(self) -> list[str]:
        """One line for each unavailable dependency, and one if dead letters are held back."""
        down = [
            f"{name} is unavailable: {handler} is stopped, and one record probes every"
            f" {PROBE_EVERY_S:g} s"
            for handler, circuit in self._circuits.items()
            for name in circuit.unavailable
        ]
        if self._breaker is not None and self._breaker.open:
            held = sum(map(len, self._held.values()))
            down.append(
                f"the breaker is open: {held} records that would be dead letters are held and"
                " tried; `kworker resume --accept-dead` dead-letters them"
            )
        return down

    def _release_held(self) -> list[HeldFailure]:
        held, self._held = self._held, {}
        return [one for of_partition in held.values() for one in of_partition]

    def _circuit(self, record: Record) -> CircuitBreaker:
        topic = record.partition.topic if record.envelope is None else record.source.topic
        handler = self._handler_of(topic)
        return self._circuits.get(handler) or self._circuits.setdefault(handler, CircuitBreaker())


def _too_large(letter: Output, failure: Failure) -> Failure:
    """Returns the failure for a record whose retry is too large for its delay topic."""
    text = (
        f"{failure.message}; its retry has up to {letter.size} bytes, too many for {letter.topic}"
    )
    return replace(failure, kind="unpublishable", message=text)
