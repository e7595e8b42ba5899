"""The guarantee at-least-once, and the protocol of both guarantees."""

from collections.abc import Collection, Mapping
from typing import Protocol

from kworker.core.durations import EndTimes
from kworker.core.message import PartitionId
from kworker.core.record import Partition, Record
from kworker.worker.publish.committer import Committer
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.publisher import Publisher
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
        """One line for each reason why outcomes wait."""

    @property
    def busy(self) -> bool:
        """True while a step of a transaction is under way."""

    @property
    def positions_readable(self) -> bool:
        """True if no transaction of this worker can hide the group's committed positions."""

    def nothing_pending(self, partitions: Collection[Partition]) -> bool:
        """Returns True if nothing is under way, and these partitions have nothing to commit."""

    def drained(self, going: Collection[Partition]) -> bool:
        """Returns True if nothing is left to do for these partitions but `give_up`."""

    def settle(self, records: list[Record]) -> None:
        """Notes in the ledgers that all outputs of these records are durable."""

    def turn(self, now: float) -> list[Record]:
        """Goes on publishing. Returns records for the caller to settle.

        Their outputs have become durable in Kafka since the last call.
        """

    def flush(self, now: float) -> None:
        """Closes the present batch or transaction, as the commit interval is over."""

    def commit(self, now: float) -> None:
        """Commits the positions that follow from settled records."""

    def give_up(self, going: Collection[Partition]) -> None:
        """Commits the positions of these partitions a last time, as they are being revoked."""

    def drop(self, partition: Partition) -> list[Record]:
        """Forgets a partition that was given up or lost.

        Returns those of its records that are published all the same, as soon as that is possible.
        """

    def take_dropped(self) -> list[Record]:
        """Returns records whose partitions were given up or lost before publishing was complete.

        Each such record is returned only once.
        """

    def unpublished(self) -> list[Record]:
        """Returns the pending records whose outputs another worker may publish.

        These are all but the records of a transaction that may have been committed.
        """

    def brokers_answered(self, now: float, since: float) -> None:
        """Notes that the brokers have been answering other clients since `since`."""

    def end(self) -> bool:
        """Ends publishing. Returns False while a transaction is open: then call it again."""


class AtLeastOnce:
    """Commits positions after outputs are acknowledged; a crash in between repeats outputs."""

    def __init__(
        self,
        publisher: Publisher,
        committer: Committer,
        partitions: Mapping[PartitionId, Partition],
        outbox: Outbox,
    ) -> None:
        """`partitions` holds the partitions this worker owns, and changes when these change."""
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
    def positions_readable(self) -> bool:
        return True

    def nothing_pending(self, partitions: Collection[Partition]) -> bool:
        return not self._committer.under_way and not self._committer.to_commit(partitions)

    def drained(self, going: Collection[Partition]) -> bool:  # noqa: ARG002 - all of them
        return not self._outbox.pending

    def settle(self, records: list[Record]) -> None:
        self._order.settle(records)

    def turn(self, now: float) -> list[Record]:
        return self._publisher.turn(now)

    def flush(self, now: float) -> None:
        self._publisher.close_batch(now)

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
