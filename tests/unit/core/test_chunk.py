"""Chunks: who has which record, whenever they are broken up."""

import gc
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.chunk import Chunk, ChunkRow
from kworker.core.lanes import Lanes
from kworker.core.memory_size import size_together, sizes_of
from kworker.core.message import Fields
from kworker.core.outcome import NO_RESULTS
from kworker.core.record import Record
from kworker.worker.chunks import Chunks
from tests.support.records import Watched, a_chunk, a_partition, a_record

SIZE = 5


def a_row(*sizes: int) -> ChunkRow:
    """Chunks of one partition, one after the other."""
    partition, begin, chunks = a_partition(), 0, []
    for size in sizes:
        chunks.append(a_chunk(partition, begin, size))
        begin += size
    return ChunkRow(chunks)


def offsets_of(records: Any) -> list[int]:
    return [record.offset for record in records]


def ended(chunk: Chunk) -> list[int]:
    part = chunk.take_ended()
    return [] if part is None else part.columns.offsets


def begin(chunk: Chunk, number: int) -> None:
    for _ in range(number):
        next(chunk.unbegun)


@pytest.fixture
def over() -> Iterator[Callable[[ChunkRow], None]]:
    """Collects what has become of a row, while no garbage is collected."""
    unused: Any = None
    chunks = Chunks(Lanes("key"), unused, unused, allowed=True)

    def collect(row: ChunkRow) -> None:
        chunks.add(row)
        chunks.collect()
        assert not chunks

    gc.disable()
    yield collect
    gc.enable()


def test_what_began_before_the_last_has_ended() -> None:
    [chunk] = a_row(SIZE).chunks
    assert ended(chunk) == []
    begin(chunk, 1)
    assert ended(chunk) == []
    begin(chunk, 2)
    assert ended(chunk) == [0, 1]
    begin(chunk, 2)
    assert not chunk.is_over
    assert ended(chunk) == [2, 3]
    assert chunk.finish() is None
    assert chunk.is_over
    assert ended(chunk) == [4]
    assert chunk.break_up() == []


@pytest.mark.parametrize("begun", range(SIZE + 1))
def test_each_record_of_a_broken_chunk_is_somewhere_once(begun: int) -> None:
    row = a_row(SIZE)
    [chunk] = row.chunks
    begin(chunk, begun)
    records = chunk.break_up()
    assert chunk.break_up() is records
    assert ended(chunk) + offsets_of(records) == list(range(SIZE))
    assert offsets_of(row.waiting) == list(range(begun, SIZE))
    assert list(chunk.unbegun) == []
    running = chunk.finish()
    assert running is (records[0] if begun else None)
    assert len(row) == SIZE - begun
    assert chunk.is_over


@pytest.mark.parametrize("begun", range(1, SIZE + 1))
def test_results_go_with_what_has_ended(begun: int) -> None:
    """Of the record that runs while its chunk is broken up, the thread brings the result."""
    [chunk] = a_row(SIZE).chunks
    chunk.results_topic = "results"
    begin(chunk, begun)
    chunk.values += [None, *[b"%d" % n for n in range(1, begun)]][:begun]
    chunk.break_up()
    part = chunk.take_ended()
    chunk.let_go()
    last = chunk.finish(b"last")
    assert last is not None
    assert [output.value for output in last.outputs] == [b"last"]
    ended_well = part.records() if part else []
    assert [record.offset for record in ended_well] == list(range(begun - 1))
    assert [[output.value for output in record.outputs] for record in ended_well] == [
        [b"%d" % n] if n else [] for n in range(begun - 1)
    ]


def test_the_results_of_a_part_are_those_of_its_records() -> None:
    [chunk] = a_row(SIZE).chunks
    chunk.results_topic = "results"
    begin(chunk, 3)
    chunk.values += [b"0", b"1", b"2"]  # of the one that runs as well
    first = chunk.take_ended()
    begin(chunk, 2)
    chunk.finish()
    second = chunk.take_ended()
    assert first is not None
    assert second is not None
    assert [(part.offsets, part.values) for part in (first, second)] == [
        ([0, 1], [b"0", b"1"]),
        ([2, 3, 4], [b"2"]),
    ]
    assert [second.results().outcome(n) is NO_RESULTS for n in range(3)] == [False, True, True]


def test_a_row_is_broken_up_as_a_whole() -> None:
    """The rest of a partition must not run before what comes back."""
    row = a_row(2, 3, 2)
    first, second, third = row.chunks
    begin(first, 2)
    first.finish()
    begin(second, 1)
    assert len(row) == 4
    third.break_up()
    assert first.break_up() == []
    assert offsets_of(second.break_up()) == [2, 3, 4]
    assert offsets_of(row.waiting) == [3, 4, 5, 6]


def test_a_row_is_broken_once_all_its_records_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its thread would find none of them, and go."""
    row = a_row(2, 2)
    seen = []
    monkeypatch.setattr(Watched, "key", lambda _: seen.append(row.broken))
    row.break_up()
    assert seen == [False] * 4
    assert row.broken


def test_records_of_a_chunk_are_as_others_are() -> None:
    """Also those whose end has to be told record by record."""
    partition = a_partition()
    [chunk] = ChunkRow([a_chunk(partition, 3)]).chunks
    begin(chunk, SIZE)
    chunk.finish()
    part = chunk.take_ended()
    assert part is not None
    for record, raw in zip(part.records(), chunk.columns.raws, strict=True):
        other = a_record(partition, raw.offset(), lane=raw.key(), key=raw.key())
        other.raw, other.memory_bytes = raw, 400 + 2 + 1
        other.outcome = NO_RESULTS
        names = [name for name in Record.__slots__ if hasattr(other, name)]
        assert [getattr(record, name) for name in names] == [getattr(other, name) for name in names]


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=9),
            st.none() | st.binary(max_size=9),
            st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_sizes_together_are_the_sum_of_the_sizes(records: list[Any]) -> None:
    raws = [Fields(("t", 0, 0), 1, key, value, tuple(own)) for key, value, own in records]
    columns: Any = [raw.key() for raw in raws], [raw.headers() for raw in raws]
    sizes = sizes_of(raws, *columns)
    total, most = size_together(raws, *columns)
    assert total == sum(sizes)
    assert most >= max(sizes)


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_a_chunk_may_be_broken_up_while_its_thread_runs_it() -> None:
    chance = random.Random(7)
    broken = 0
    for _ in range(300):
        row = a_row(40, 40)
        row.lock = threading.Lock()
        ran: list[int] = []
        last: list[Record] = []

        def run(row: ChunkRow = row, ran: list[int] = ran, last: list[Record] = last) -> None:
            for chunk in row.chunks:
                for raw in chunk.unbegun:
                    ran.append(raw.offset())
                    time.sleep(0)  # others may go on here
                if (record := chunk.finish()) is not None:
                    last.append(record)
                if row.broken:
                    break

        thread = threading.Thread(target=run)
        told: list[int] = []
        thread.start()
        for _ in range(chance.randrange(60)):
            for chunk in row.chunks:
                told += ended(chunk)
        row.break_up()
        thread.join()
        for chunk in row.chunks:
            told += ended(chunk)
        assert sorted(told + offsets_of(last)) == ran
        assert ran + offsets_of(row.waiting) == list(range(80))
        broken += bool(row.waiting)
    assert broken, "each was run to its end before it was broken up"


def test_a_record_that_runs_for_long_keeps_no_other(over: Callable[[ChunkRow], None]) -> None:
    """Its thread has the row meanwhile, and the others may be large."""
    row = a_row(SIZE, SIZE)
    raws = [weakref.ref(raw) for chunk in row.chunks for raw in chunk.columns.raws]
    begin(row.chunks[0], 3)
    row.break_up()
    over(row)
    row.waiting.clear()  # as if they were taken back, and had ended
    assert [number for number, raw in enumerate(raws) if raw() is not None] == [2]
    assert offsets_of(row.chunks[0].break_up()) == [2]
    assert row.chunks[0].finish() is row.chunks[0].break_up()[0]


@pytest.mark.parametrize("breaks", [False, True])
def test_what_is_over_is_freed_at_once(over: Callable[[ChunkRow], None], breaks: bool) -> None:
    """A cycle would keep messages until the next collection of garbage: hundreds of megabytes."""
    row = a_row(SIZE)
    [chunk] = row.chunks
    raw = weakref.ref(chunk.columns.raws[0])
    begin(chunk, 2 if breaks else SIZE)
    if breaks:
        row.break_up()
    chunk.finish()
    over(row)
    del chunk, row
    assert raw() is None
