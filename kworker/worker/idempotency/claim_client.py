"""Claims as the poll thread sees them: records of lanes go in, those that may run come out."""

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable

import structlog

from kworker.core.claim import pack
from kworker.core.outcome import Results
from kworker.core.record import Partition, Record
from kworker.worker.idempotency.claim_table import ClaimAnswers, ClaimBatch
from kworker.worker.idempotency.claim_thread import ClaimThread
from kworker.worker.idempotency.prefetch import ClaimPrefetch

_LOG = structlog.get_logger()

GAP_S = 0.005  # between two batches: to wake the claims thread costs more than to wait
GATHER_S = 0.03  # what is not urgent is handed over so often


class ClaimClient:
    """Stands between lanes and pool: asks for records ahead of the handlers, never waits.

    Owned by the poll thread. A record that was asked for is out, as with the pool, until it
    comes back by `turn`, `take` or `withdraw`. At most one of a lane may be out: so no claim
    is held by a record that waits for another's, and nobody waits in a circle.
    """

    def __init__(
        self, claiming: ClaimThread, pace: ClaimPrefetch, unavailable: str = "wait"
    ) -> None:
        self._claiming = claiming
        self._pace = pace
        self._waits = unavailable == "wait"
        self._thread = threading.Thread(target=claiming.run, name="claims", daemon=True)
        self._batch = ClaimBatch()
        self._ready: deque[Record] = deque()
        self._sent: deque[list[Record]] = deque()  # the records of each batch without an answer
        self._out = 0  # records in those
        self._withdrawn: set[Record] = set()  # of those
        self._sent_at = 0.0
        self.duplicates = 0
        self.unprotected = 0

    def start(self) -> None:
        """Begins the claims thread."""
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why nothing runs, if that is so."""
        away = self._claiming.away
        return f"Redis: {away}; records wait for it" if self._waits and away else None

    @property
    def pending(self) -> bool:
        """Something is about to happen: the poll thread should not rest for long."""
        return self._claiming.away is None and (self._out > 0 or self._waiting)

    @property
    def ready(self) -> int:
        """How many records `take` would give."""
        return len(self._ready)

    def room(self) -> int:
        """For how many more records it may ask now."""
        return max(0, self._pace.ahead - len(self._ready) - len(self._batch.asked) - self._out)

    def claim(self, records: Iterable[Record]) -> None:
        """For the heads of as many lanes, or what `turn` had called busy."""
        if not self._withdrawn:
            self._batch.asked.extend(records)
            return
        for record in records:
            if record in self._withdrawn:
                self._withdrawn.remove(record)  # it is still out
            else:
                self._batch.asked.append(record)

    def turn(self, now: float) -> ClaimAnswers:
        """Hands over what is due, and hears the answers; those to run are for `take`.

        Raises what ended the claims thread, if something did.
        """
        if self._claiming.failure:
            raise self._claiming.failure
        heard = ClaimAnswers()
        while self._claiming.answered:
            self._hear(self._claiming.answered.popleft(), heard)
        self._pace.look(now)
        if self._due(now):
            self._send(now)
        return heard

    # -- between lanes and pool -------------------------------------------------------

    def take(self, most: int) -> deque[Record]:
        """Up to so many records that may run, oldest first."""
        ready = self._ready
        if most >= len(ready):
            run, self._ready = ready, deque()
        else:
            run = deque([ready.popleft() for _ in range(most)])
        self._pace.took(len(run))
        return run

    def put_back(self, records: Iterable[Record]) -> None:
        """Records that were taken and did not start, in the order in which they were taken."""
        back = list(records)
        self._ready.extendleft(reversed(back))
        self._pace.took(-len(back))

    def withdraw(self, partition: Partition) -> list[Record]:
        """Those of a partition that are out; their claims are released. They may be asked again."""
        ready = [record for record in self._ready if record.partition is partition]
        if ready:
            self._ready = deque(r for r in self._ready if r.partition is not partition)
            self.cancelled(ready)
        asked = [record for record in self._batch.asked if record.partition is partition]
        if asked:
            self._batch.asked = [r for r in self._batch.asked if r.partition is not partition]
        sent = [r for run in self._sent for r in run if r.partition is partition]
        fresh = [record for record in sent if record not in self._withdrawn]
        self._withdrawn.update(fresh)
        return [*ready, *fresh, *asked]

    # -- what became of them ----------------------------------------------------------

    def settled(self, records: Iterable[Record]) -> None:
        """All that they led to is durable: their events are done."""
        self._batch.settled.extend([record for record in records if record.claim])

    def released(self, records: Iterable[Record]) -> None:
        """Durable as retries or dead letters: their events are not done, and may run again."""
        self._batch.released.extend([record for record in records if record.claim])

    def cancelled(self, records: Iterable[Record]) -> None:
        """They will not run here, and have not begun."""
        self._batch.cancelled.extend([record for record in records if record.claim])

    def ended_after_revoke(self, records: Iterable[Record]) -> None:
        """Their handlers ran and ended after their partitions had closed: others publish that.

        What failed, and what is too large to hand on, runs again there.
        """
        for record in records:
            if (packed := _packed(record)) is None:
                self.released([record])
            elif record.claim:
                self._batch.handed_over.append((record, packed))

    def drain(self, deadline: float) -> bool:
        """At the end of a worker, when nothing runs any more: the last marks.

        Waits until the claims thread has ended, or for the deadline (monotonic seconds), for
        which it needs as long as a call to Redis may take. What Redis did not take is in
        `state_dir`. False when the thread has not ended.
        """
        self.turn(time.monotonic())
        self.cancelled(self._ready)
        self._ready.clear()
        self._send(time.monotonic())
        self._claiming.inbox.put(None)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    # -- batches ----------------------------------------------------------------------

    @property
    def _waiting(self) -> bool:
        batch = self._batch
        marks = batch.settled or batch.released or batch.cancelled or batch.handed_over
        return bool(marks or batch.asked)

    def _due(self, now: float) -> bool:
        since = now - self._sent_at
        if since < GAP_S or not self._waiting or not self._claiming.inbox.empty():
            return False
        stock = len(self._ready) + self._out
        urgent = self._batch.asked and 2 * stock <= self._pace.ahead
        return bool(urgent) or since >= GATHER_S

    def _send(self, now: float) -> None:
        batch, self._batch = self._batch, ClaimBatch()
        self._sent_at = now
        self._sent.append(batch.asked)
        self._out += len(batch.asked)
        self._claiming.inbox.put(batch)

    def _hear(self, answers: ClaimAnswers, heard: ClaimAnswers) -> None:
        for _ in range(answers.batches):
            self._out -= len(self._sent.popleft())
        if self._withdrawn:
            self._drop_withdrawn(answers)
        self._ready.extend(answers.run)
        heard.duplicates += answers.duplicates
        heard.busy += answers.busy
        heard.with_kept_outcome += answers.with_kept_outcome
        heard.rejected += answers.rejected
        self.unprotected += answers.unprotected
        self.duplicates += len(answers.duplicates)
        self._tell(answers.duplicates)

    def _drop_withdrawn(self, answers: ClaimAnswers) -> None:
        gone = self._withdrawn
        self.cancelled(_of(answers.run, gone))
        self.cancelled(_of(answers.with_kept_outcome, gone))
        answered = {*answers.run, *answers.duplicates, *answers.with_kept_outcome}
        answered.update(record for record, _ in [*answers.busy, *answers.rejected])
        answers.run = _but(answers.run, gone)
        answers.duplicates = _but(answers.duplicates, gone)
        answers.with_kept_outcome = _but(answers.with_kept_outcome, gone)
        answers.busy = [each for each in answers.busy if each[0] not in gone]
        answers.rejected = [each for each in answers.rejected if each[0] not in gone]
        self._withdrawn = gone - answered

    def _tell(self, duplicates: list[Record]) -> None:
        if not duplicates or not _LOG.is_enabled_for(logging.DEBUG):
            return  # a position costs more than the rest
        for record in duplicates:
            _LOG.debug("duplicate: done before, settled without a run", source=str(record.source))


def _packed(record: Record) -> str | None:
    """None for what failed, and for what is too large to hand on."""
    return pack(record.outcome) if isinstance(record.outcome, Results) else None


def _of(records: list[Record], chosen: Collection[Record]) -> list[Record]:
    return [record for record in records if record in chosen]


def _but(records: list[Record], gone: Collection[Record]) -> list[Record]:
    return [record for record in records if record not in gone]
