"""How outcomes become durable, together with the positions behind them: at least once."""

from collections.abc import Collection
from typing import Protocol

from kworker.core.record import Partition, Record
from kworker.worker.committer import Committer
from kworker.worker.publisher import Publisher


class Settling(Protocol):
    """What the poller needs of either guarantee. Owned by the poll thread; nothing waits."""

    @property
    def published(self) -> int:
        """Outputs produced, ever."""

    @property
    def troubles(self) -> list[str]:
        """Why something waits, a line each."""

    def turn(self, now: float) -> list[Record]:
        """Moves on what is under way; records that are settled by it."""

    def close(self, now: float) -> None:
        """The interval is over: what is published by now shall be settled."""

    def commit(self, partitions: Collection[Partition], now: float) -> None:
        """Tells the group what is settled of these."""

    def quiet(self, partitions: Collection[Partition]) -> bool:
        """Nothing is under way, and the group knows all that is settled of these."""

    def give_up(self, going: Collection[Partition]) -> None:
        """They go now: the last word to the group."""

    def brokers_answer(self, now: float) -> None:
        """Others hear from the brokers."""


class AtLeastOnce:
    """First the acknowledgements, then the positions: between them a crash repeats."""

    def __init__(self, publisher: Publisher, committer: Committer) -> None:
        self._publisher = publisher
        self._committer = committer

    @property
    def published(self) -> int:
        return self._publisher.published

    @property
    def troubles(self) -> list[str]:
        return [self._publisher.silence] if self._publisher.silence else []

    def turn(self, now: float) -> list[Record]:
        return self._publisher.turn(now)

    def close(self, now: float) -> None:
        self._publisher.close_batch(now)

    def commit(self, partitions: Collection[Partition], now: float) -> None:
        self._committer.commit(partitions, now)

    def quiet(self, partitions: Collection[Partition]) -> bool:
        return not self._committer.under_way and not self._committer.news(partitions)

    def give_up(self, going: Collection[Partition]) -> None:
        self._committer.commit_now(going)

    def brokers_answer(self, now: float) -> None:
        self._publisher.brokers_answer(now)
