"""The claims thread: the only one of a worker that talks to Redis."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Literal, Protocol

import structlog

from kworker.core.claim import Answer, Exchange
from kworker.core.event_id import IdOf
from kworker.errors import Unreachable
from kworker.worker.idempotency.claim_table import ClaimAnswers, ClaimBatch, ClaimTable
from kworker.worker.idempotency.liveness import OwnerLiveness
from kworker.worker.idempotency.redis_outbox import RedisOutbox
from kworker.worker.quarantine.shared_suspects import SharedSuspects

_LOG = structlog.get_logger()

_BEATS, _LOOKS = 3, 6  # a lease: of this owner; at those who hold what is wanted here
_RETRY_S = (0.1, 2.0)  # without Redis: first wait, longest wait
_TRYING = 0.2  # of the time, at most, where others do not wait for Redis
_ROUNDS = 3  # for the same ids: found dead, its marks told, taken over


class Claims(Protocol):
    """What the claims thread needs of `RedisClaims` or its twin."""

    def exchange(self, ask: Exchange) -> Answer: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """As `[idempotency]` says."""

    lease_s: float
    missing: Literal["process", "reject"] = "process"
    unavailable: Literal["wait", "process"] = "wait"


class ClaimThread:
    """Owns the connection to Redis, the book and the marks.

    One thread runs it. Batches come by `inbox`, answers go by `answered`. Every call is the
    owner's beat; without anything to say there is one a third of a lease, or where suspects are
    shared one a second.
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
        suspects: SharedSuspects | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gone` tells which owners surely have ended."""
        self._claims = claims
        self._suspects = suspects
        self._policy = policy
        self._outbox = outbox
        self._clock = clock
        self._silence = OwnerLiveness(policy.lease_s)
        self._book = ClaimTable(
            owner=owner,
            id_of=id_of,
            missing=policy.missing,
            gone=gone,
            outbox=outbox,
            silence=self._silence,
            clock=clock,
        )
        self.inbox: Queue[ClaimBatch | None] = (
            Queue()
        )  # None: the end; see `CompletionQueue` for why not simple
        self.answered: deque[ClaimAnswers] = deque()
        self.away: str | None = None  # what Redis said last; read by the poll thread, too
        self.failure: Exception | None = None
        self._ending = False
        self._beat_at = self._look_at = self._try_at = 0.0
        self._retry_s = _RETRY_S[0]

    def run(self) -> None:
        """Until the end comes by the inbox; what is left goes to Redis, or stays in the folder."""
        try:
            self._outbox.load()
            while not self._ending:
                self.turn(self._wait_s(self._clock()))
            self._end()
        except Exception as error:  # noqa: BLE001 - the top of a thread
            _LOG.exception("the claims thread ended; the worker follows")
            self.failure = error
        finally:
            self._claims.close()
            if self._suspects is not None:
                self._suspects.close()

    def turn(self, wait_s: float) -> None:
        """Waits so long for a batch, then does what is due."""
        self._hear(wait_s)
        if self._ending:
            return
        if self._due(self._clock()):
            self._exchange()
        if self.away is not None and self._policy.unavailable == "process":
            self._book.grant_unprotected()
        if answers := self._book.answers():
            self.answered.append(answers)

    # -- when -------------------------------------------------------------------------

    def _due(self, now: float) -> bool:
        return now >= self._try_at and (self._news or now >= self._call_at)

    def _wait_s(self, now: float) -> float:
        due = now if self._news else self._call_at
        return max(0.0, max(due, self._try_at) - now)

    @property
    def _news(self) -> bool:
        return self._book.asking or len(self._outbox) > 0

    @property
    def _call_at(self) -> float:
        beat_at = min(self._beat_at, self._look_at) if self._silence.owners else self._beat_at
        return beat_at if self._suspects is None else min(beat_at, self._suspects.due_at)

    # -- what happens -----------------------------------------------------------------

    def _hear(self, wait_s: float) -> None:
        """All batches that are there."""
        try:
            batch = self.inbox.get(timeout=wait_s) if wait_s > 0 else self.inbox.get_nowait()
            while batch is not None:
                self._book.enter(batch)
                batch = self.inbox.get_nowait()
            self._ending = True
        except Empty:
            pass

    def _exchange(self) -> None:
        began = self._clock()
        try:
            self._talk()
        except Unreachable as error:
            self._lost(str(error), began)
            return
        if self.away is not None:
            _LOG.info("Redis answers again", was=self.away)
            self.away, self._retry_s = None, _RETRY_S[0]

    def _talk(self) -> None:
        """Suspects and marks, then claims, then those that dead owners hold."""
        if self._suspects is not None:
            self._suspects.turn(self._clock())
        for _ in range(_ROUNDS):
            while self._outbox.many:
                self._say(self._outbox.next())
            ask = self._outbox.next()
            self._book.fill(ask)
            self._book.take_in(ask, self._say(ask))
            if not self._book.asking:
                return
        self._book.postpone()

    def _say(self, ask: Exchange) -> Answer:
        ask.watched = self._silence.owners
        asked = self._clock()
        answer = self._claims.exchange(ask)
        self._silence.hear(answer.beats, asked, self._clock())
        self._beat_at = asked + self._policy.lease_s / _BEATS
        self._look_at = asked + self._policy.lease_s / _LOOKS
        self._outbox.told(ask)
        return answer

    def _lost(self, words: str, began: float) -> None:
        now = self._clock()
        self._silence.interrupted()
        waiting = self._policy.unavailable == "wait"
        if self.away is None:
            then = (
                "records wait for it" if waiting else "records run, whether they did before or not"
            )
            _LOG.warning(f"Redis does not answer; {then}", error=words)
        self.away = words
        # A call may take as long as its time-out, and meanwhile nothing is answered.
        wait_s = self._retry_s if waiting else max(self._retry_s, (now - began) / _TRYING)
        self._try_at = now + wait_s
        self._retry_s = min(_RETRY_S[1], self._retry_s * 2)

    def _end(self) -> None:
        """First to the folder, so that nothing is lost whatever becomes of the call."""
        self._book.close(self.answered)
        self._outbox.keep()
        try:
            while len(self._outbox):
                self._say(self._outbox.next())
            if self._suspects is not None:
                self._suspects.end()
        except Unreachable as error:
            _LOG.warning(
                "marks are kept in state_dir; the next start tells them to Redis",
                marks=len(self._outbox),
                error=str(error),
            )
