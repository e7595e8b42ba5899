"""Settlement: outcomes are published, then settled in their ledgers, then committed."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from kworker.core import headers
from kworker.core.chunk import ChunkPart
from kworker.core.flow import Flow
from kworker.core.outcome import (
    TOMBSTONE,
    DeadLettered,
    PlainResult,
    Publishable,
    Results,
    RetryScheduled,
    Skipped,
)
from kworker.core.record import Partition, Record
from kworker.core.record_groups import all_ended_well, all_without_results
from kworker.worker.dispatch import Dispatch
from kworker.worker.publish.at_least_once import DeliveryGuarantee
from kworker.worker.publish.committer import Committer
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.result_block import ResultBlock

_HELD_SHOWN = 3  # dead letters that their topic refuses
_outcome = attrgetter("outcome")


@dataclass(slots=True)
class WorkerCounters:
    """The numbers of records by outcome, since the worker began."""

    done: int = 0
    retried: int = 0
    dead: int = 0
    dead_by_reason: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    dropped: int = 0  # tombstones

    @property
    def settled(self) -> int:
        """The number of settled records except dropped ones: done, retried, dead or duplicates."""
        return self.done + self.retried + self.dead + self.duplicates


class Settlement:
    """Publishes outcomes, settles their records, and commits the positions that result.

    Owned by the poll thread. Never waits. `outcomes` is the number of outcomes since the present
    commit interval began.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        outbox: Outbox,
        guarantee: DeliveryGuarantee,
        committer: Committer,
        flow: Flow,
    ) -> None:
        self._dispatch = dispatch
        self._endings = dispatch.endings
        self._rejections = dispatch.rejections
        self._outbox = outbox
        self.guarantee = guarantee
        self._committer = committer
        self._flow = flow
        self.counters = WorkerCounters()
        self.outcomes = 0
        self._commit_due = False  # once what the last interval has flushed is settled
        self._unsent = False  # records were settled since the last commit

    @property
    def problems(self) -> list[str]:
        """One line for each reason why outcomes are not published or committed."""
        waiting = [*self._outbox.problems, *self.guarantee.problems]
        if (trouble := self._committer.problem) is not None:
            waiting.append(f"commit: {trouble}")
        return [f"{problem}; unacknowledged records wait" for problem in waiting]

    @property
    def held(self) -> list[str]:
        """One line per refused retry or dead letter, for the first few; one line for the rest."""
        held = self._outbox.held
        lines = [each.describe() for each in held[:_HELD_SHOWN]]
        if len(held) > _HELD_SHOWN:
            lines.append(f"{len(held) - _HELD_SHOWN} more are refused like that")
        return lines

    @property
    def pending(self) -> int:
        """The number of records whose outputs are not in Kafka yet."""
        return self._outbox.pending

    @property
    def full(self) -> bool:
        """True while so many outputs wait that no more records should be taken from Kafka."""
        return self._outbox.full

    @property
    def busy(self) -> bool:
        """True while outputs are not yet in Kafka, or a step of a transaction is under way."""
        return bool(self._outbox.pending) or self.guarantee.busy

    def is_complete(self, partitions: Collection[Partition]) -> bool:
        """Returns True if no output is unpublished, and these partitions have nothing to commit."""
        return not self._outbox.pending and self.guarantee.nothing_pending(partitions)

    def due_at(self) -> float:
        """Returns the monotonic time at which the present commit interval ends."""
        return self._committer.due_at(self.outcomes, resting=not self._flow.records)

    # -- outcomes ---------------------------------------------------------------------

    def add(self, ended: list[Record], parts: Sequence[ChunkPart] = ()) -> None:
        """Hands ended records to the outbox, or settles them if there is nothing to publish.

        Also hands to the outbox all records whose results were too large for their topic. They wait
        in the outbox until the brokers have told the size limits again. The records of `parts`
        ended before `ended`.
        """
        if parts:
            self._add_parts(parts)
        if ended:
            self._sort(ended)
        if oversized := self._endings.oversized:
            self._endings.oversized = []
            self.outcomes += len(oversized)
            self._outbox.add_large(oversized)

    def accept_dead(self) -> None:
        """Lets records that the dead-letter limit holds back become dead letters."""
        self._sort(self._endings.accept_dead())

    def _sort(self, ended: list[Record]) -> None:
        self.outcomes += len(ended)
        # If others wait for Kafka, these wait with them: all settle in their order.
        if not self._outbox.pending and all_without_results(ended):
            self._done(ended)
            return
        if not all_ended_well(ended):
            self._skip([record for record in ended if isinstance(record.outcome, Skipped)])
            ended = [record for record in ended if isinstance(record.outcome, Publishable)]
        if self._outbox.pending or any(map(_outcome, ended)):
            self._outbox.add(ended)
        else:
            self._done(ended)

    def _add_parts(self, parts: Sequence[ChunkPart]) -> None:
        self.outcomes += sum([part.number for part in parts])
        if self._outbox.pending or any(part.values for part in parts):  # see `_sort`
            self._outbox.add_parts(parts)
        else:
            self._done_parts(parts)

    def _done_parts(self, parts: Sequence[ChunkPart | ResultBlock]) -> None:
        self.counters.done += sum(map(len, [part.offsets for part in parts]))
        self.guarantee.settle_parts(parts)

    def _skip(self, skipped: list[Record]) -> None:
        """Settles duplicates and tombstones, for which nothing is published."""
        tombstones = [record for record in skipped if record.outcome is TOMBSTONE]
        self.counters.duplicates += len(skipped) - len(tombstones)
        self.counters.dropped += len(tombstones)
        self.guarantee.settle(skipped)
        self._dispatch.settled(tombstones)

    # -- publishing and committing ----------------------------------------------------

    def turn(self, now: float, partitions: Collection[Partition]) -> None:
        """Publishes outputs, settles acknowledged records, and commits when it is time.

        `partitions` are those that this worker owns now.
        """
        settled = self.guarantee.turn(now)
        self._published(settled)
        if blocks := self.guarantee.take_blocks():
            self._done_parts(blocks)
            self._dispatch.settled_blocks(blocks)
        if dropped := self.guarantee.take_dropped():
            self._dispatch.outlived(dropped)
        if self._outbox.undeliverable:
            self._fail_undeliverable(now)
        self._commit_if_due(now, bool(settled or blocks))
        if self._committer.problem is not None and self.is_complete(partitions):
            self._committer.problem = None  # its partition, or its record, is gone

    def _commit_if_due(self, now: float, settled: bool) -> None:
        """Commits once an interval, or at once what is settled while no record is in flight.

        The latter is for a drain, which waits for nothing else then.
        """
        self._unsent |= settled
        resting, overdue = not self._flow.records, False
        if self._committer.due(now, self.outcomes, resting=resting):
            overdue, self._commit_due = self._commit_due, True
            self._begin_interval(now)
        flushing = self.guarantee.flushing
        due = overdue or (self._commit_due and not flushing)
        if due or self._committer.missed or (self._unsent and resting):
            self._commit_due, self._unsent = self._commit_due and flushing, False
            self.guarantee.commit(now)

    def _begin_interval(self, now: float) -> None:
        self._committer.start_interval(now)
        self.outcomes = 0
        self.guarantee.flush(now)
        self._dispatch.tidy()
        if self._rejections.any:
            self._fail_rejected()

    def _published(self, records: list[Record]) -> None:
        """Notes that the outputs of these records are in Kafka, so that commits may cover them."""
        if all_ended_well(records):
            self._done(records)
            return
        done, retried, dead = [], [], []
        for record in records:
            match record.outcome:
                case Results() | PlainResult():
                    done.append(record)
                case RetryScheduled():
                    retried.append(record)
                case DeadLettered():
                    dead.append(record)
        self._done(done)
        self.counters.retried += len(retried)
        self.counters.dead += len(dead)
        self.counters.dead_by_reason.update(map(_reason, dead))
        self.guarantee.settle([*retried, *dead])
        self._dispatch.settled_failures(retried, dead)

    def _done(self, records: list[Record]) -> None:
        self.counters.done += len(records)
        self.guarantee.settle(records)
        self._dispatch.settled(records)

    # -- what a topic refuses for good ------------------------------------------------

    def _fail_undeliverable(self, now: float) -> None:
        """Decides what follows for records with an output that its topic refuses for good.

        A record with a refused result becomes a dead letter. A refused retry or dead letter is cut
        to its topic's size limit. If that is not possible, it is held, and tried again later. A
        held retry that is refused again is replaced by a dead letter.
        """
        condemned, self._outbox.undeliverable = self._outbox.undeliverable, []
        held = []
        for each in condemned:
            record = each.record
            if not record.partition.open:
                self._outbox.let_go([record])
                self._dispatch.outlived([record])
                continue
            match record.outcome:
                case RetryScheduled() | DeadLettered() if self._endings.shorten(record):
                    self._outbox.write(record)
                case DeadLettered():
                    held.append(each)
                case RetryScheduled() if not each.again:
                    held.append(each)
                case RetryScheduled():
                    self._refuse(record, f"{each.topic} does not take its retry: {each.why}")
                case _:
                    self._refuse(record, f"{each.topic} does not take a result: {each.why}")
        if held:
            self._outbox.hold(held, now)

    def _fail_rejected(self) -> None:
        """Fails waiting records that an operator has rejected.

        These records wait because a topic refuses their outputs at present. Does not fail a record
        that is a dead letter already.
        """
        for record in self._outbox.withdraw(self._is_rejected):
            self._refuse(record, "rejected")

    def _is_rejected(self, record: Record) -> bool:
        dead = isinstance(record.outcome, DeadLettered)
        return not dead and bool(self._rejections.by(record.source))

    def _refuse(self, record: Record, why: str) -> None:
        self._outbox.let_go([record])
        self._endings.refused(record, why)


def _reason(record: Record) -> str:
    """Returns the reason in the dead letter of a record."""
    assert isinstance(record.outcome, DeadLettered)
    [letter] = record.outcome
    return (dict(letter.headers)[headers.REASON] or b"").decode()
