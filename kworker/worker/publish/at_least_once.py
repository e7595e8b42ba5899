"""The guarantee at-least-once, and the protocol of both guarantees."""

from collections.abc import Collection, Mapping
from typing import Protocol

from kworker.core.message import PartitionId
from kworker.core.record import Partition, Record
from kworker.worker.publish.committer import Committer
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.publisher import Publisher


class DeliveryGuarantee(Protocol):
    """Makes outcomes durable, and the positions that follow from them.

    Owned by the poll thread; no method waits.
    """

    @property
    def published(self) -> int:
        """Outputs produced, ever."""

    @property
    def problems(self) -> list[str]:
        """Reasons why outcomes wait, a line each."""

    @property
    def busy(self) -> bool:
        """True if an answer of Kafka is expected soon."""

    @property
    def positions_readable(self) -> bool:
        """True if no transaction of this worker can hide positions of the group."""

    def nothing_pending(self, partitions: Collection[Partition]) -> bool:
        """True if nothing is under way and the group holds all that is settled of these."""

    def drained(self, going: Collection[Partition]) -> bool:
        """True if nothing is left to do for these but `give_up`."""

    def turn(self, now: float) -> list[Record]:
        """Moves on what is under way; returns the records that are settled by it."""

    def flush(self, now: float) -> None:
        """Begins to settle what is published by now: the commit interval is over."""

    def commit(self, now: float) -> None:
        """Commits what is settled."""

    def give_up(self, going: Collection[Partition]) -> None:
        """Commits these for the last time: they are revoked now."""

    def drop(self, partition: Partition) -> None:
        """Ends with a partition that is given up or lost."""

    def take_dropped(self) -> list[Record]:
        """Returns the records dropped since the last call: other members publish them."""

    def brokers_answered(self, now: float, since: float) -> None:
        """Notes that other clients have had answers from the brokers since `since`."""

    def end(self) -> bool:
        """Publishes no more; False while a transaction is open: to be called again."""


class AtLeastOnce:
    """Commits positions once outputs are acknowledged: a crash in between repeats outputs."""

    def __init__(
        self,
        publisher: Publisher,
        committer: Committer,
        partitions: Mapping[PartitionId, Partition],
        outbox: Outbox,
    ) -> None:
        """`partitions` always holds those that are owned."""
        self._publisher = publisher
        self._committer = committer
        self._partitions = partitions
        self._outbox = outbox

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

    def turn(self, now: float) -> list[Record]:
        return self._publisher.turn(now)

    def flush(self, now: float) -> None:
        self._publisher.close_batch(now)

    def commit(self, now: float) -> None:
        self._committer.commit(self._partitions.values(), now)

    def give_up(self, going: Collection[Partition]) -> None:
        self._committer.commit_now(going)

    def drop(self, partition: Partition) -> None:
        """Does nothing: what was handed over has an outcome, and is published all the same."""

    def take_dropped(self) -> list[Record]:
        return []

    def brokers_answered(self, now: float, since: float) -> None:
        self._publisher.brokers_answered(now, since)

    def end(self) -> bool:
        return True
