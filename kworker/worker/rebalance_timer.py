"""Measures how long rebalances block the poll thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kworker.clients.consumer import Listener
from kworker.core.message import PartitionId


class RebalanceTimer:
    """Passes the consumer's calls on to a rebalance listener, and adds up how long they last.

    A revocation lasts until the running records have ended; the group waits meanwhile. An
    assignment lasts until the positions of its partitions are read. Owned by the poll thread.
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
