"""Buffers of records for batch handlers, until there are enough for a batch."""

from collections import deque
from collections.abc import Collection, Iterable
from math import inf

from kworker.core.record import Partition, Record
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.signature import Batching


class BatchBuffer:
    """A queue in which records wait for their batch. Owned by the poll thread.

    The attribute `batching` has the settings of the one batch handler whose records wait here. If
    it is None, each batch has one record: either the record's handler takes one record at a time,
    or the record waits for a call of its handler's method `dead`.
    """

    def __init__(self, batching: Batching | None, size_max: int) -> None:
        self.batching = batching
        self.size = min(batching.size, size_max) if batching else 1
        self._wait_s = batching.wait_s if batching else 0.0
        self._waiting: deque[tuple[float, Record]] = deque()

    @property
    def next_size(self) -> int:
        """The number of records that a batch would have if it began now."""
        return min(self.size, len(self._waiting))

    @property
    def since(self) -> float:
        """The time at which the oldest record was added. Raises IndexError if no record waits."""
        return self._waiting[0][0]

    def add(self, record: Record, now: float) -> None:
        self._waiting.append((now, record))

    def is_due(self, now: float) -> bool:
        """Returns True if a batch is full, or its oldest record has waited long enough."""
        waiting = self._waiting
        full = len(waiting) >= self.size
        return bool(waiting) and (full or now - self.since >= self._wait_s)

    def flush(self) -> None:
        """Makes all waiting records due now, even if they do not fill a batch."""
        self._waiting = deque((-inf, record) for _, record in self._waiting)

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Removes and returns the records of these partitions."""
        back = [record for _, record in self._waiting if record.partition in going]
        if back:
            self._waiting = deque(each for each in self._waiting if each[1].partition not in going)
        return back

    def take(self) -> list[Record]:
        """Removes and returns the next batch, oldest first."""
        following = self._waiting.popleft
        return [following()[1] for _ in range(self.next_size)]


class BatchBuffers:
    """The buffers of all handlers. Owned by the poll thread."""

    def __init__(self, handlers: Handlers, size_max: int) -> None:
        self._handlers = handlers
        self._single = BatchBuffer(None, size_max)
        self._of = {batching: BatchBuffer(batching, size_max) for batching in handlers.batchings}
        self._all = [self._single, *self._of.values()]
        self._of_topic: dict[str, BatchBuffer] = {}
        # Records that may still be added: up to the next batch of each handler.
        self.room = sum(buffer.size for buffer in self._all)

    def add(self, records: Iterable[Record], now: float) -> None:
        """Adds each record to the buffer of its handler."""
        for record in records:
            self._buffer_of(record).add(record, now)
            self.room -= 1

    def flush(self) -> None:
        """Makes all waiting records due now, even if they do not fill a batch."""
        for buffer in self._all:
            buffer.flush()

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Removes and returns the records of these partitions."""
        back = [record for buffer in self._all for record in buffer.withdraw(going)]
        self.room += len(back)
        return back

    def longest_due(self, now: float) -> BatchBuffer | None:
        """Returns the buffer whose batch is due; None if there is none.

        If batches of several buffers are due, returns the buffer with the oldest record.
        """
        due = [buffer for buffer in self._all if buffer.is_due(now)]
        return min(due, key=lambda buffer: buffer.since, default=None)

    def take(self, buffer: BatchBuffer) -> list[Record]:
        """Removes and returns a buffer's next batch."""
        records = buffer.take()
        self.room += len(records)
        return records

    def _buffer_of(self, record: Record) -> BatchBuffer:
        if record.on_dead is not None:
            return self._single
        topic = record.raw.topic()
        return self._of_topic.get(topic) or self._route(topic)

    def _route(self, topic: str) -> BatchBuffer:
        batching = self._handlers.batching_of(topic)
        buffer = self._of_topic[topic] = self._of[batching] if batching else self._single
        return buffer
