"""The guarantee at-least-once, and the interface of both guarantees."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from kworker.core.chunk import ChunkPart
from kworker.core.durations import EndTimes
from kworker.core.message import PartitionId
from kworker.core.record import Partition, Record
from kworker.worker.publish.committer import Committer
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.publisher import Publisher
from kworker.worker.publish.result_block import ResultBlock
from kworker.worker.publish.settle_order import SettleOrder


class DeliveryGuarantee(Protocol):
    """Publishes outcomes, and commits the positions that follow from them.

    Owned by the poll thread. Only `give_up` blocks.
    """

    @property
    def published(self) -> int:
        """The number of outputs produced since the worker began."""

    @property
    def transactions(self) -> EndTimes:
        """The numbers and durations of committed, and of aborted (failed), transactions."""

    @property
    def problems(self) -> list[str]:
        """One line for each present reason why outcomes cannot be published."""

    @property
    def busy(self) -> bool:
        """True while a transactional call to Kafka runs, or the transaction is about to end."""

    @property
    def positions_readable(self) -> bool:
        """False while a transaction of unknown end may block reads of the group's positions."""

    def nothing_pending(self, partitions: Collection[Partition]) -> bool:
        """Returns True if no commit or transaction is under way, and these partitions need none."""

    def drained(self, going: Collection[Partition]) -> bool:
        """Returns True if nothing is left to do for these partitions but `give_up`."""

    def settle(self, records: list[Record]) -> None:
        """Notes in the ledgers that all outputs of these records are durable."""

    def settle_parts(self, parts: Sequence[ChunkPart | ResultBlock]) -> None:
        """Does what `settle` does, for the records of parts of chunks."""

    def turn(self, now: float) -> list[Record]:
        """Takes one step of publishing: produces outputs, or reads what Kafka has answered.

        Returns the records whose outputs have become durable since the last call. The caller then
        settles these records.
        """

    def take_blocks(self) -> list[ResultBlock]:
        """Returns blocks of such records, which `turn` does not return."""

    def flush(self, now: float) -> None:
        """Makes the present batch or transaction end, so that its records can be settled."""

    @property
    def flushing(self) -> bool:
        """True while `commit` should wait for records that a `flush` lets be settled soon."""

    def commit(self, now: float) -> None:
        """Commits the positions that follow from settled records."""

    def give_up(self, going: Collection[Partition]) -> None:
        """Commits the positions of these partitions a last time, as they are being revoked."""

    def drop(self, partition: Partition) -> list[Record]:
        """Forgets a partition that was given up or lost.

        Returns the partition's pending records whose outputs this worker still publishes.
        """

    def take_dropped(self) -> list[Record]:
        """Returns records whose partitions were given up or lost before publishing was complete.

        This worker does not publish them any more. Each record is returned only once.
        """

    def unpublished(self) -> list[Record]:
        """Returns the pending records that can be left to other workers for publishing.

        Leaves out only the records of a transaction that may have been committed already.
        """

    def brokers_answered(self, now: float, since: float) -> None:
        """Notes that the brokers have answered other clients since the time `since`.

        If acknowledgements have been missing for too long after `since`, replaces the producer, at
        once or in the next `turn`.
        """

    def end(self) -> bool:
        """Ends publishing, and aborts an open transaction unless its commit has begun.

        Returns False while the transaction is open: then call `turn`, and `end` again.
        """


class AtLeastOnce:
    """Commits positions after outputs are acknowledged; a crash in between repeats outputs."""

    def __init__(
        self,
        publisher: Publisher,
        committer: Committer,
        partitions: Mapping[PartitionId, Partition],
        outbox: Outbox,
    ) -> None:
        """`partitions` always has the partitions that this worker owns at present."""
        self._publisher = publisher
        self._committer = committer
        self._partitions = partitions
        self._outbox = outbox
        self._order = SettleOrder()
        outbox.overtaken = self._order.overtaken
        self.transactions = EndTimes()  # there are none

    @property
    def published(self) -> int:
        return self._publisher.published

    @property
    def problems(self) -> list[str]:
        return [self._publisher.problem] if self._publisher.problem else []

    @property
    def busy(self) -> bool:
        return False

    @property
    def flushing(self) -> bool:
        return self._publisher.flushing

    @property
    def positions_readable(self) -> bool:
        return True

    def nothing_pending(self, partitions: Collection[Partition]) -> bool:
        return not self._committer.under_way and not self._committer.to_commit(partitions)

    def drained(self, going: Collection[Partition]) -> bool:  # noqa: ARG002 - all of them
        return not self._outbox.pending

    def settle(self, records: list[Record]) -> None:
        self._order.settle(records)

    def settle_parts(self, parts: Sequence[ChunkPart | ResultBlock]) -> None:
        self._order.settle_parts(parts)

    def turn(self, now: float) -> list[Record]:
        return self._publisher.turn(now)

    def take_blocks(self) -> list[ResultBlock]:
        return self._publisher.take_blocks()

    def flush(self, now: float) -> None:
        self._publisher.flush(now)

    def commit(self, now: float) -> None:
        self._committer.commit(self._partitions.values(), now)

    def give_up(self, going: Collection[Partition]) -> None:
        self._committer.commit_now(going)

    def drop(self, partition: Partition) -> list[Record]:
        self._order.forget(partition)
        return [record for record in self.unpublished() if record.partition is partition]

    def take_dropped(self) -> list[Record]:
        return []

    def unpublished(self) -> list[Record]:
        return [*self._publisher.unacknowledged(), *self._outbox.unsent()]

    def brokers_answered(self, now: float, since: float) -> None:
        self._publisher.brokers_answered(now, since)

    def end(self) -> bool:
        return True
