"""The interface of every pool of handlers, which dispatch and the isolated process use."""

from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from kworker.core.chunk import ChunkRow
from kworker.core.record import Partition, Record
from kworker.worker.handlers.completions import CompletionQueue

Take = Callable[[int], deque[Record] | ChunkRow]
"""Returns up to so many records; none when nothing may run.

They are of different lanes. For a pool that runs them in order, later records of a lane may come
right behind its first, or all come in chunks (only to a pool that `runs_chunks`).
"""


class Pool(Protocol):
    """The interface of a pool of threads, or of an event loop, that runs handlers."""

    completed: CompletionQueue

    @property
    def runs_chunks(self) -> bool: ...
    @property
    def runs_in_order(self) -> bool: ...  # the records of one call of `Take`
    @property
    def one_is_enough(self) -> bool: ...  # thread for all handlers, at present
    @property
    def has_work(self) -> bool: ...
    def feed(self, take: Take) -> int: ...
    def slack_s(self) -> float: ...
    def reclaim(self, now: float) -> list[Record]: ...
    def withdraw(self, going: Collection[Partition]) -> list[Record]: ...
    def flush(self) -> None: ...
