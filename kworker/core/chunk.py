"""Chunks: records of one partition, as columns, of which most never become a `Record`."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import length_hint
from typing import NamedTuple

from kworker.core.memory_size import sizes_of
from kworker.core.message import HeaderList, RawMessage
from kworker.core.outcome import NO_RESULTS
from kworker.core.plain_results import PlainResults, PlainValue
from kworker.core.record import Partition, Record, records_of


class Row(deque[Record]):
    """Records that one thread runs one after the other, since any may be of the same lane.

    The records of a partition are adjacent. If one does not end well, those of its partition that
    come after it have to be put back.
    """


class Columns(NamedTuple):
    """The columns of adjacent records of one partition, as they are delivered.

    `taken_ns` is the monotonic time of the poll. `headers` is None if no record has any.
    """

    offsets: list[int]
    lanes: Sequence[object]
    raws: list[RawMessage]
    taken_ns: int
    headers: Sequence[HeaderList | None] | None = None

    def part(self, begin: int, end: int) -> "Columns":
        """Returns the columns of the records from the index `begin` to before `end`."""
        return Columns(
            self.offsets[begin:end],
            self.lanes[begin:end],
            self.raws[begin:end],
            self.taken_ns,
            None if self.headers is None else self.headers[begin:end],
        )

    def records(self, partition: Partition) -> list[Record]:
        """Makes a `Record` of each."""
        sizes = self.sizes()
        return records_of(partition, self.offsets, self.lanes, sizes, self.raws, self.taken_ns)

    def sizes(self) -> list[int]:
        """Returns the approximate size of each record in memory, in bytes."""
        raws, headers = self.raws, self.headers
        return sizes_of(raws, [raw.key() for raw in raws], headers or [None] * len(raws))


_NO_COLUMNS = Columns([], [], [], 0)


class Chunk:
    """Adjacent records of one partition, which one thread runs in the order of delivery.

    If handlers do nothing, a fifth of a worker's CPU time goes into making, counting and freeing a
    `Record` for each. So a chunk has columns. It is broken up into records only if one of them ends
    other than with `NO_RESULTS` or one plain result, or if the poll thread needs one. The thread
    that runs it iterates over `unbegun`, of which nothing is left then.
    """

    __slots__ = (
        "_counted",
        "_finished",
        "_first",
        "_running",
        "columns",
        "memory_bytes",
        "partition",
        "records",
        "results_topic",
        "row",
        "unbegun",
        "values",
    )

    def __init__(self, partition: Partition, columns: Columns, memory_bytes: int) -> None:
        """`memory_bytes` is the sum of the records' sizes (see `sizes_of`)."""
        self.partition = partition
        self.columns = columns
        self.memory_bytes = memory_bytes
        self.unbegun: Iterator[RawMessage] = iter(columns.raws)
        self.row: ChunkRow | None = None  # in which it was taken, until it is over
        self.records: list[Record] | None = None  # since it was broken up: without those that ended
        # Of plain results, which the thread adds: None for a record without, if others follow.
        self.values: list[PlainValue | None] = []
        self.results_topic = ""  # set before that
        self._first = 0  # the index of the first of `records`
        self._running: Record | None = None  # of `records`, the one that had begun
        self._finished = False  # all ended well, and it was not broken up
        self._counted = 0  # of those that ended, how many `take_ended` has returned

    def __len__(self) -> int:
        return len(self.columns.offsets)

    @property
    def left(self) -> int:
        """The number of records that have not begun, while the chunk is whole."""
        return length_hint(self.unbegun)

    def break_up(self) -> list[Record]:
        """Makes a record of each that has not ended, once, and returns them in order.

        Breaks up the whole row, if the chunk was taken. The first record may be the one that runs.
        If so, its thread learns of it by `finish`.
        """
        if (row := self.row) is not None:
            row.break_up()
        elif not self.is_over:
            self._break_up()
        return self.records or []

    def _break_up(self) -> list[Record]:
        """Breaks this chunk up; returns the records that have not begun."""
        if self._finished:
            return []
        columns, number = self.columns, len(self)
        begun = number - len(list(self.unbegun))  # nothing begins from here on
        self._first = max(0, begun - 1)
        self.records = columns.part(self._first, number).records(self.partition)
        self._running = self.records[0] if begun else None
        return self.records[begun - self._first :]

    def finish(self, value: PlainValue | None = None) -> Record | None:
        """Notes that the thread has nothing left in `unbegun`, and what it began has ended well.

        Returns the record that was made of the last one that it began, if it was broken up, with
        its outcome. `value` is that of its result.
        """
        if (row := self.row) is not None:
            with row.lock:
                self._finished = self.records is None
        if (last := self._running) is not None:
            own = (last.offset,), (last.raw,), (value,)
            results = PlainResults.of(self.results_topic, self.partition, *own)
            last.outcome = results.outcome(0)
        return last

    def let_go(self) -> None:
        """Ends the references to all but the record that runs, once what is over was taken.

        With one to the row, only `gc` could free both. And a thread may have this for as long as
        one record runs, whose messages must not keep the others' memory.
        """
        self.row = None
        self.columns = _NO_COLUMNS
        self.values.clear()
        if self.records is not None:
            self.records = [] if self._running is None else [self._running]

    @property
    def is_over(self) -> bool:
        """True if the next `take_ended` returns the last part; any others are in `records`."""
        return self._finished or self.records is not None

    def take_ended(self) -> "ChunkPart | None":
        """Returns those that have ended well since the last call. For the poll thread.

        While the chunk is whole, the last one that began counts as running.
        """
        assert self.row is not None
        with self.row.lock:
            if self.records is not None:
                ended = self._first
            elif self._finished:
                ended = len(self)
            else:
                ended = max(0, len(self) - self.left - 1)
        begin, self._counted = self._counted, ended
        if begin == ended:
            return None
        part, memory_bytes = self.columns, self.memory_bytes
        if ended - begin < len(self):
            part = part.part(begin, ended)
            memory_bytes = sum(part.sizes())
        values = self.values[begin:ended]
        return ChunkPart(self.partition, part, memory_bytes, self.results_topic, values)


class ChunkRow:
    """Chunks that one thread runs one after the other; those of a partition are adjacent.

    Either the thread or the poll thread may break up all of them, at any time. Then the thread goes
    on with `waiting`, the records that had not begun. Who hands it to a thread sets `lock`.
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self.waiting = Row()
        self.broken = False
        self.lock: AbstractContextManager[object] = nullcontext()
        for chunk in chunks:
            chunk.row = self

    def __len__(self) -> int:
        """The number of records that have not begun."""
        with self.lock:  # else those that are made just now would be missing
            return sum([chunk.left for chunk in self.chunks]) + len(self.waiting)

    def break_up(self) -> None:
        """Makes a record of each that has not ended; does nothing if that was done before."""
        with self.lock:
            if not self.broken:
                for chunk in self.chunks:
                    self.waiting.extend(chunk._break_up())
                self.broken = True  # last: the thread reads it without the lock

    def abandon(self) -> None:
        """Lets nothing begin any more, in a forked copy: what held the lock may not exist there."""
        self.lock = nullcontext()
        for chunk in self.chunks:
            deque(chunk.unbegun, 0)
        self.waiting.clear()


class ChunkPart(NamedTuple):
    """Records of a chunk that have ended well, each with one plain result or with none.

    Of those after the last of `values`, none has a result.
    """

    partition: Partition
    columns: Columns
    memory_bytes: int
    results_topic: str = ""
    values: Sequence[PlainValue | None] = ()

    @property
    def number(self) -> int:
        """The number of the records."""
        return len(self.columns.offsets)

    @property
    def offsets(self) -> list[int]:
        return self.columns.offsets

    def results(self) -> PlainResults:
        """Returns the results of all."""
        offsets, raws = self.columns.offsets, self.columns.raws
        return PlainResults.of(self.results_topic, self.partition, offsets, raws, self.values)

    def records(self) -> list[Record]:
        """Makes a `Record` of each, with its outcome."""
        records = self.columns.records(self.partition)
        for record in records:
            record.outcome = NO_RESULTS
        if self.values:
            results = self.results()
            for nth, record in enumerate(records):
                record.outcome = results.outcome(nth)
        return records
