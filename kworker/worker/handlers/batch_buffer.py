"""Records on their way into batches: gathered by handler, until there are enough of them."""

from collections import deque
from collections.abc import Collection, Iterable
from math import inf

from kworker.core.record import Partition, Record
from kworker.worker.handlers.loader import Handlers
from kworker.worker.handlers.signature import Batching


class BatchBuffer:
    """The records that wait to be a batch of one handler. Owned by the poll thread.

    Without `batching` each of them is one: a record of a handler that takes one at a
    time, or one of which a handler is told.
    """

    def __init__(self, batching: Batching | None, size_max: int) -> None:
        self.batching = batching
        self.size = min(batching.size, size_max) if batching else 1
        self._wait_s = batching.wait_s if batching else 0.0
        self._waiting: deque[tuple[float, Record]] = deque()

    @property
    def next_size(self) -> int:
        """Of the next batch, if it began now."""
        return min(self.size, len(self._waiting))

    @property
    def since(self) -> float:
        """When the first became ready; IndexError when there is none."""
        return self._waiting[0][0]

    def add(self, record: Record, now: float) -> None:
        self._waiting.append((now, record))

    def due(self, now: float) -> bool:
        """There is a batch to begin."""
        waiting = self._waiting
        full = len(waiting) >= self.size
        return bool(waiting) and (full or now - self.since >= self._wait_s)

    def flush(self) -> None:
        """What is here has waited long enough."""
        self._waiting = deque((-inf, record) for _, record in self._waiting)

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Those of these partitions; the others wait on."""
        back = [record for _, record in self._waiting if record.partition in going]
        if back:
            self._waiting = deque(each for each in self._waiting if each[1].partition not in going)
        return back

    def take(self) -> list[Record]:
        """The next batch: those that came first."""
        following = self._waiting.popleft
        return [following()[1] for _ in range(self.next_size)]


class BatchBuffers:
    """Those of all handlers. Owned by the poll thread."""

    def __init__(self, handlers: Handlers, size_max: int) -> None:
        self._handlers = handlers
        self._alone = BatchBuffer(None, size_max)
        self._of = {batching: BatchBuffer(batching, size_max) for batching in handlers.batchings}
        self._all = [self._alone, *self._of.values()]
        self._of_topic: dict[str, BatchBuffer] = {}
        # For how many records more: the next batch of each may be there.
        self.room = sum(gathering.size for gathering in self._all)

    def add(self, records: Iterable[Record], now: float) -> None:
        """Records that may run now."""
        for record in records:
            self._gathering(record).add(record, now)
            self.room -= 1

    def flush(self) -> None:
        """What has been gathered so far is due."""
        for gathering in self._all:
            gathering.flush()

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Those of these partitions, of which nothing shall begin."""
        back = [record for gathering in self._all for record in gathering.withdraw(going)]
        self.room += len(back)
        return back

    def longest_due(self, now: float) -> BatchBuffer | None:
        """Of those with a batch to begin."""
        due = [gathering for gathering in self._all if gathering.due(now)]
        return min(due, key=lambda gathering: gathering.since, default=None)

    def take(self, gathering: BatchBuffer) -> list[Record]:
        """Its next batch."""
        records = gathering.take()
        self.room += len(records)
        return records

    def _gathering(self, record: Record) -> BatchBuffer:
        if record.on_dead is not None:
            return self._alone
        topic = record.raw.topic()
        return self._of_topic.get(topic) or self._route(topic)

    def _route(self, topic: str) -> BatchBuffer:
        batching = self._handlers.batching_of(topic)
        gathering = self._of_topic[topic] = self._of[batching] if batching else self._alone
        return gathering
