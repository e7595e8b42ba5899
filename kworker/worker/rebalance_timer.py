"""Measures how long rebalances keep the poll thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kworker.clients.consumer import Listener
from kworker.core.message import PartitionId


class RebalanceTimer:
    """Passes on the calls of the consumer to its listener, and adds up how long rebalances last.

    While partitions are revoked, the records that run go on to their end, and the group waits.
    While others are assigned, their positions are read. Owned by the poll thread.
    """

    def __init__(self, listener: Listener, clock: Callable[[], float]) -> None:
        self._listener = listener
        self._clock = clock
        self.total_s = 0.0

    def assigned(self, partitions: list[PartitionId]) -> None:
        with self._measured():
            self._listener.assigned(partitions)

    def revoked(self, partitions: list[PartitionId]) -> None:
        with self._measured():
            self._listener.revoked(partitions)

    def lost(self, partitions: list[PartitionId]) -> None:
        with self._measured():
            self._listener.lost(partitions)

    def committed(self, error: str | None) -> None:
        self._listener.committed(error)

    @contextmanager
    def _measured(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self.total_s += self._clock() - began
