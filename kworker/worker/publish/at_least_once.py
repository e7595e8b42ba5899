"""How outcomes become durable, together with the positions behind them: at least once."""

from collections.abc import Collection, Mapping
from typing import Protocol

from kworker.core.message import PartitionId
from kworker.core.record import Partition, Record
from kworker.worker.publish.committer import Committer
from kworker.worker.publish.outbox import Outbox
from kworker.worker.publish.publisher import Publisher


class DeliveryGuarantee(Protocol):
    """What the poller needs of either guarantee. Owned by the poll thread; nothing waits."""

    @property
    def published(self) -> int:
        """Outputs produced, ever."""

    @property
    def problems(self) -> list[str]:
        """Why something waits, a line each."""

    @property
    def busy(self) -> bool:
        """Something will be heard soon."""

    @property
    def positions_readable(self) -> bool:
        """Nothing of ours stands between the group's positions and who reads them."""

    def nothing_pending(self, partitions: Collection[Partition]) -> bool:
        """Nothing is under way, and the group knows all that is settled of these."""

    def drained(self, going: Collection[Partition]) -> bool:
        """Nothing is left to do for these but `give_up`."""

    def turn(self, now: float) -> list[Record]:
        """Moves on what is under way; records that are settled by it."""

    def flush(self, now: float) -> None:
        """The interval is over: what is published by now shall be settled."""

    def commit(self, now: float) -> None:
        """Tells the group what is settled."""

    def give_up(self, going: Collection[Partition]) -> None:
        """They go now: the last word to the group."""

    def drop(self, partition: Partition) -> None:
        """It is given up, or lost."""

    def take_dropped(self) -> list[Record]:
        """Records that are others' to publish, since the last call."""

    def brokers_answered(self, now: float, since: float) -> None:
        """Others hear from the brokers, and have done so `since` then."""

    def end(self) -> bool:
        """Publishes no more; whether nothing is open. To be asked until that is so."""


class AtLeastOnce:
    """First the acknowledgements, then the positions: between them a crash repeats."""

    def __init__(
        self,
        publisher: Publisher,
        committer: Committer,
        partitions: Mapping[PartitionId, Partition],
        backlog: Outbox,
    ) -> None:
        """`partitions` are those that are owned, now and whenever it is looked at."""
        self._publisher = publisher
        self._committer = committer
        self._partitions = partitions
        self._backlog = backlog

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
        return not self._committer.under_way and not self._committer.news(partitions)

    def drained(self, going: Collection[Partition]) -> bool:  # noqa: ARG002 - whose it is
        return not self._backlog.pending

    def turn(self, now: float) -> list[Record]:
        return self._publisher.turn(now)

    def flush(self, now: float) -> None:
        self._publisher.close_batch(now)

    def commit(self, now: float) -> None:
        self._committer.commit(self._partitions.values(), now)

    def give_up(self, going: Collection[Partition]) -> None:
        self._committer.commit_now(going)

    def drop(self, partition: Partition) -> None:
        """What was handed over is published all the same: it has an outcome, and once is enough."""

    def take_dropped(self) -> list[Record]:
        return []

    def brokers_answered(self, now: float, since: float) -> None:
        self._publisher.brokers_answered(now, since)

    def end(self) -> bool:
        return True
