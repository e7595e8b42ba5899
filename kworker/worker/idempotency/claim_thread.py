"""The claims thread: the only one of a worker that talks to Redis."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Literal, Protocol

import structlog

from kworker.core.claim import Answer, Exchange
from kworker.core.durations import EndTimes
from kworker.core.event_id import IdOf
from kworker.errors import Unreachable
from kworker.worker.idempotency.claim_table import ClaimAnswers, ClaimBatch, ClaimTable
from kworker.worker.idempotency.liveness import OwnerLiveness
from kworker.worker.idempotency.redis_outbox import RedisOutbox

_LOG = structlog.get_logger()

# In a lease: heartbeats of this owner, and checks of owners that hold an event wanted here.
_BEATS, _CHECKS = 3, 6
_RETRY_S = (0.1, 2.0)  # without Redis: first wait, longest wait
_TRYING = 0.2  # share of time in calls that fail, at most, if records do not wait for Redis
_ROUNDS = 3  # for the same ids: owner found dead, its updates sent, its events taken over


class Claims(Protocol):
    """The part of `RedisClaims`, and of its fake in the tests, that the claims thread uses."""

    def exchange(self, ask: Exchange) -> Answer: ...
    def close(self) -> None: ...


class SharedState(Protocol):
    """State that all instances share through Redis beside the claims: pauses, suspects."""

    @property
    def due_at(self) -> float: ...
    def turn(self, now: float) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """The settings of `[idempotency]`.

    `missing` says what happens to a record without an id, and `unavailable` what happens to records
    while Redis does not answer.
    """

    lease_s: float
    missing: Literal["process", "reject"] = "process"
    unavailable: Literal["wait", "process"] = "wait"


class ClaimThread:
    """Talks to Redis in a thread of its own, for the claims of one worker and the `shared` state.

    Batches arrive in `inbox`, answers are appended to `answered`. Every call for claims is also a
    heartbeat of this worker. While there is nothing to claim, a heartbeat is sent every third of a
    lease, or every second if there is shared state.
    """

    def __init__(
        self,
        claims: Claims,
        *,
        owner: str,
        id_of: IdOf,
        policy: ClaimPolicy,
        gone: Callable[[str], bool],
        outbox: RedisOutbox,
        shared: Sequence[SharedState] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gone` returns True if the owner of a claim, a worker process, has certainly ended."""
        self._claims = claims
        self._shared = shared
        self._policy = policy
        self._outbox = outbox
        self._clock = clock
        self._liveness = OwnerLiveness(policy.lease_s)
        self._table = ClaimTable(
            owner=owner,
            id_of=id_of,
            missing=policy.missing,
            gone=gone,
            outbox=outbox,
            liveness=self._liveness,
            clock=clock,
        )
        # None is the end. A SimpleQueue could block for ever: see `CompletionQueue`.
        self.inbox: Queue[ClaimBatch | None] = Queue()
        self.answered: deque[ClaimAnswers] = deque()
        self.redis_error: str | None = None  # of the last call; read by the poll thread, too
        self.calls = EndTimes()  # to Redis; read by the poll thread, too
        self.failure: Exception | None = None
        self._ending = False
        self._beat_at = self._check_at = self._try_at = 0.0
        self._retry_s = _RETRY_S[0]

    def run(self) -> None:
        """Talks to Redis until None arrives in `inbox`, then sends the last updates of claims.

        If Redis does not answer then, these updates stay in a file, and the next start sends them.
        """
        try:
            self._outbox.load()
            while not self._ending:
                self.turn(self._wait_s(self._clock()))
            self._end()
        except Exception as error:  # noqa: BLE001 - the top of a thread
            _LOG.exception(
                "the thread that talks to Redis, for idempotency, failed; the worker exits, and"
                " its unfinished records are redelivered"
            )
            self.failure = error
        finally:
            self._claims.close()
            for state in self._shared:
                state.close()

    def turn(self, wait_s: float) -> None:
        """Waits up to `wait_s` seconds for a batch, then makes the calls to Redis that are due."""
        self._receive(wait_s)
        if self._ending:
            return
        if self._due(self._clock()):
            self._exchange()
        if self.redis_error is not None and self._policy.unavailable == "process":
            self._table.grant_unprotected()
        if answers := self._table.answers():
            self.answered.append(answers)

    # -- due times --------------------------------------------------------------------

    def _due(self, now: float) -> bool:
        return now >= self._try_at and (self._has_news or now >= self._call_at)

    def _wait_s(self, now: float) -> float:
        due = now if self._has_news else self._call_at
        return max(0.0, max(due, self._try_at) - now)

    @property
    def _has_news(self) -> bool:
        return self._table.is_asking or len(self._outbox) > 0

    @property
    def _call_at(self) -> float:
        call_at = min(self._beat_at, self._check_at) if self._liveness.owners else self._beat_at
        return min([call_at, *(state.due_at for state in self._shared)])

    # -- batches and calls ------------------------------------------------------------

    def _receive(self, wait_s: float) -> None:
        """Passes all `ClaimBatch`es in `inbox` to the table of claims.

        Waits up to `wait_s` seconds for the first batch. After a None in `inbox`, the thread ends.
        """
        try:
            batch = self.inbox.get(timeout=wait_s) if wait_s > 0 else self.inbox.get_nowait()
            while batch is not None:
                self._table.enter(batch)
                batch = self.inbox.get_nowait()
            self._ending = True
        except Empty:
            pass

    def _exchange(self) -> None:
        began = self._clock()
        try:
            self._exchange_all()
        except Unreachable as error:
            self._unreachable(str(error), began)
            return
        if self.redis_error is not None:
            _LOG.info("Redis answers again", was=self.redis_error)
            self.redis_error, self._retry_s = None, _RETRY_S[0]

    def _exchange_all(self) -> None:
        """Sends and reads shared state, sends updates of earlier claims, and requests new claims.

        Claims that dead owners hold are requested again at once, to take them over.
        """
        for state in self._shared:
            if (now := self._clock()) >= state.due_at:
                with self._measured():
                    state.turn(now)
        for _ in range(_ROUNDS):
            while self._outbox.needs_calls:
                self._call(self._outbox.next())
            ask = self._outbox.next()
            self._table.fill(ask)
            self._table.apply(ask, self._call(ask))
            if not self._table.is_asking:
                return
        self._table.postpone()

    def _call(self, ask: Exchange) -> Answer:
        ask.watched = self._liveness.owners
        asked = self._clock()
        with self._measured():
            answer = self._claims.exchange(ask)
        self._liveness.update(answer.beats, asked, self._clock())
        self._beat_at = asked + self._policy.lease_s / _BEATS
        self._check_at = asked + self._policy.lease_s / _CHECKS
        self._outbox.delivered(ask)
        return answer

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Counts the `with` block as one call to Redis, which failed if the block raises.

        If the block makes several calls, as it does for shared state, they count as one.
        """
        began, failed = self._clock(), True
        try:
            yield
            failed = False
        finally:
            self.calls.add(self._clock() - began, failed=failed)

    def _unreachable(self, error: str, began: float) -> None:
        now = self._clock()
        self._liveness.interrupted()
        waiting = self._policy.unavailable == "wait"
        if self.redis_error is None:
            _LOG.warning(
                "Redis does not answer; records wait until it does"
                if waiting
                else "Redis does not answer; records run without duplicate protection",
                error=error,
            )
        self.redis_error = error
        # A call may take as long as its time-out, and no batch is answered meanwhile.
        wait_s = self._retry_s if waiting else max(self._retry_s, (now - began) / _TRYING)
        self._try_at = now + wait_s
        self._retry_s = min(_RETRY_S[1], self._retry_s * 2)

    def _end(self) -> None:
        """Writes the last updates of claims to files, then sends these updates to Redis.

        So a failed call to Redis loses no update, as long as `state_dir` can be written to.
        """
        self._table.close(self.answered)
        kept = self._outbox.keep()
        try:
            while len(self._outbox):
                self._call(self._outbox.next())
            for state in self._shared:
                state.end()
        except Unreachable as error:
            _LOG.warning(
                "Redis does not answer while the worker ends; the idempotency updates that it"
                " lacks are kept in state_dir, and the next start sends them"
                if kept
                else "Redis does not answer while the worker ends; the idempotency updates that"
                " it lacks are lost, and their events may run again",
                updates=len(self._outbox),
                error=str(error),
            )
