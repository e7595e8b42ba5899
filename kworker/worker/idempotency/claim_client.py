"""The poll thread's side of claims: heads of lanes go in, records that may run come out."""

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable

import structlog

from kworker.core.claim import pack
from kworker.core.outcome import Succeeded
from kworker.core.record import Partition, Record
from kworker.worker.idempotency.claim_table import ClaimAnswers, ClaimBatch
from kworker.worker.idempotency.claim_thread import ClaimThread
from kworker.worker.idempotency.prefetch import ClaimPrefetch

_LOG = structlog.get_logger()

GAP_S = 0.005  # between two batches, since waking the claims thread costs more than waiting
GATHER_S = 0.03  # between two batches of which nothing is urgent


class ClaimClient:
    """Requests claims in Redis for records before their handlers run. Only `drain` blocks.

    Owned by the poll thread. A record is in this client's care from `claim` until `turn`, `take` or
    `withdraw` returns it. Of a lane (the queue of one key), only the first record is in its care.
    Otherwise a later record could hold its claim while the first one waits for a claim that another
    worker holds, and two workers could wait for each other.
    """

    def __init__(
        self, claims: ClaimThread, prefetch: ClaimPrefetch, unavailable: str = "wait"
    ) -> None:
        self._claims = claims
        self.calls = claims.calls
        self._prefetch = prefetch
        self._waits = unavailable == "wait"
        self._thread = threading.Thread(target=claims.run, name="claims", daemon=True)
        self._batch = ClaimBatch()
        self._ready: deque[Record] = deque()
        self._sent: deque[list[Record]] = deque()  # the records of each batch without an answer
        self._out = 0  # number of records in `_sent`
        self._withdrawn: set[Record] = set()  # of those in `_sent`
        self._sent_at = 0.0
        self.duplicates = 0
        self.unprotected = 0

    takes_rows = False  # each record is the first of its lane
    keeps_outcomes = True  # in Redis, where the next owner of a partition finds them

    def start(self) -> None:
        """Starts the claims thread, which alone talks to Redis."""
        self._thread.start()

    @property
    def asking(self) -> bool:
        """True while the claims thread has not answered for records that were sent to it."""
        return self._out > 0

    @property
    def problem(self) -> str | None:
        """Redis's error, if all records wait until Redis answers again; otherwise None."""
        error = self._claims.redis_error
        return f"Redis: {error}; records wait for it" if self._waits and error else None

    @property
    def pending(self) -> bool:
        """True if an answer or a request is due soon; then the poll thread must not wait long."""
        return self._claims.redis_error is None and (self._out > 0 or self._waiting)

    @property
    def suspended(self) -> bool:
        """True while Redis does not answer, records wait for it, and `room` is 0."""
        return self._waits and self._claims.redis_error is not None and self.room() == 0

    @property
    def ready(self) -> int:
        """The number of records that `take` would return."""
        return len(self._ready)

    def room(self) -> int:
        """Returns the number of records that may be passed to `claim` now."""
        return max(0, self._prefetch.ahead - len(self._ready) - len(self._batch.asked) - self._out)

    def claim(self, records: Iterable[Record]) -> None:
        """Requests a claim for each record.

        A record must be the first in the queue of its key, or one that `turn` returned as busy.
        """
        if not self._withdrawn:
            self._batch.asked.extend(records)
            return
        for record in records:
            if record in self._withdrawn:
                self._withdrawn.remove(record)  # its first claim is not answered yet
            else:
                self._batch.asked.append(record)

    def turn(self, now: float) -> ClaimAnswers:
        """Sends requests and updates that are due, and returns the answers received.

        Records that may run are not among the answers; `take` returns them. Raises the exception
        that ended the claims thread, if one did.
        """
        if self._claims.failure:
            raise self._claims.failure
        received = ClaimAnswers()
        while self._claims.answered:
            self._receive(self._claims.answered.popleft(), received)
        self._prefetch.update(now)
        if self._due(now):
            self._send(now)
        return received

    # -- between lanes and pool -------------------------------------------------------

    def take(self, most: int) -> deque[Record]:
        """Returns up to `most` records that may run, oldest first."""
        ready = self._ready
        if most >= len(ready):
            run, self._ready = ready, deque()
        else:
            run = deque([ready.popleft() for _ in range(most)])
        self._prefetch.took(len(run))
        return run

    def take_behind(self, taken: deque[Record], most: int) -> deque[Record]:  # noqa: ARG002
        """Returns `taken` as it is, because only the first record of a lane is claimed."""
        return taken

    def put_back(self, records: Iterable[Record]) -> None:
        """Takes back records that `take` returned and that have not started.

        Expects them in the order in which `take` returned them.
        """
        back = list(records)
        self._ready.extendleft(reversed(back))
        self._prefetch.took(-len(back))

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Gives up the records of the partitions in `going`, and releases their claims.

        Returns these records. They may be passed to `claim` again.
        """
        ready = [record for record in self._ready if record.partition in going]
        if ready:
            self._ready = deque(r for r in self._ready if r.partition not in going)
            self.cancelled(ready)
        asked = [record for record in self._batch.asked if record.partition in going]
        if asked:
            self._batch.asked = [r for r in self._batch.asked if r.partition not in going]
        sent = [r for run in self._sent for r in run if r.partition in going]
        fresh = [record for record in sent if record not in self._withdrawn]
        self._withdrawn.update(fresh)
        return [*ready, *fresh, *asked]

    def close(self, partition: Partition) -> list[Record]:
        """Drops the records of a closed partition that wait here, and releases their claims.

        Returns an empty list, since no claim is left to be released.
        """
        self.withdraw((partition,))
        return []

    # -- ends of records --------------------------------------------------------------

    def settled(self, records: Iterable[Record]) -> None:
        """Has Redis mark the events of these records, whose outputs are all durable, as done."""
        self._batch.settled.extend([record for record in records if record.claim])

    def released(self, records: Iterable[Record]) -> None:
        """Releases the claims of records whose retries or dead letters are durable.

        Their events are not done, and may run again.
        """
        self._batch.released.extend([record for record in records if record.claim])

    def cancelled(self, records: Iterable[Record]) -> None:
        """Releases the claims of records that have not begun and will not run here."""
        self._batch.cancelled.extend([record for record in records if record.claim])

    def hand_over(self, records: Iterable[Record]) -> None:
        """Leaves the outcomes of ended runs to the next owners of their partitions.

        Redis stores the results of a run, and the next owner publishes them. If a run failed, or
        its results are too large to be stored, the record's claim is released. Then the next owner
        runs the record again.
        """
        for record in records:
            if (packed := _packed(record)) is None:
                self.released([record])
            elif record.claim:
                self._batch.handed_over.append((record, packed))

    def drain(self, deadline: float) -> bool:
        """Sends the last updates at the end of a worker, when no handler runs any more.

        Blocks until the claims thread has ended, at most until `deadline` (monotonic seconds),
        which should leave time for one call to Redis. Updates that Redis did not get are kept in
        `state_dir`. Returns False if the thread has not ended.
        """
        self.turn(time.monotonic())
        self.cancelled(self._ready)
        self._ready.clear()
        self._send(time.monotonic())
        self._claims.inbox.put(None)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    # -- batches ----------------------------------------------------------------------

    @property
    def _waiting(self) -> bool:
        batch = self._batch
        updates = batch.settled or batch.released or batch.cancelled or batch.handed_over
        return bool(updates or batch.asked)

    def _due(self, now: float) -> bool:
        since = now - self._sent_at
        if since < GAP_S or not self._waiting or not self._claims.inbox.empty():
            return False
        stock = len(self._ready) + self._out
        urgent = self._batch.asked and 2 * stock <= self._prefetch.ahead
        return bool(urgent) or since >= GATHER_S

    def _send(self, now: float) -> None:
        batch, self._batch = self._batch, ClaimBatch()
        self._sent_at = now
        self._sent.append(batch.asked)
        self._out += len(batch.asked)
        self._claims.inbox.put(batch)

    def _receive(self, answers: ClaimAnswers, received: ClaimAnswers) -> None:
        for _ in range(answers.batches):
            self._out -= len(self._sent.popleft())
        if self._withdrawn:
            self._drop_withdrawn(answers)
        self._ready.extend(answers.run)
        received.duplicates += answers.duplicates
        received.busy += answers.busy
        received.with_kept_outcome += answers.with_kept_outcome
        received.rejected += answers.rejected
        self.unprotected += answers.unprotected
        self.duplicates += len(answers.duplicates)
        _log_duplicates(answers.duplicates)

    def _drop_withdrawn(self, answers: ClaimAnswers) -> None:
        gone = self._withdrawn
        self.cancelled(_among(answers.run, gone))
        self.cancelled(_among(answers.with_kept_outcome, gone))
        answered = {*answers.run, *answers.duplicates, *answers.with_kept_outcome}
        answered.update(record for record, _ in [*answers.busy, *answers.rejected])
        answers.run = _without(answers.run, gone)
        answers.duplicates = _without(answers.duplicates, gone)
        answers.with_kept_outcome = _without(answers.with_kept_outcome, gone)
        answers.busy = [each for each in answers.busy if each[0] not in gone]
        answers.rejected = [each for each in answers.rejected if each[0] not in gone]
        self._withdrawn = gone - answered


def _log_duplicates(duplicates: list[Record]) -> None:
    if not duplicates or not _LOG.is_enabled_for(logging.DEBUG):
        return  # making a position costs more than all else here
    for record in duplicates:
        _LOG.debug(
            "duplicate record: its event was done before, so the handler is not called for it",
            record="{}:{}:{}".format(*record.source.place),
        )


def _packed(record: Record) -> str | None:
    """Returns a record's results as text; None if its run failed, or if they are too large."""
    return pack(record.outcome) if isinstance(record.outcome, Succeeded) else None


def _among(records: list[Record], chosen: Collection[Record]) -> list[Record]:
    return [record for record in records if record in chosen]


def _without(records: list[Record], gone: Collection[Record]) -> list[Record]:
    return [record for record in records if record not in gone]
