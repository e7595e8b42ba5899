"""Which records a replay takes: the window, the stretches, and how a course goes through them."""

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from kworker.clients.memory.event import Event
from kworker.core.message import Fields, PartitionId
from kworker.core.offset_map import Settled
from kworker.core.times import TimeRange
from kworker.replay.ranges import OffsetRanges, settled_ranges

A, B = ("orders", 0), ("orders", 1)


def record(at: PartitionId, offset: int, timestamp: int = 0) -> Fields:
    return Fields((*at, offset), timestamp, None, b"", ())


def event(at: PartitionId, offset: int, code: int = KafkaError._PARTITION_EOF) -> Event:
    return Event(at, offset, KafkaError(code))


def picked(course: OffsetRanges, *batch: Fields) -> list[int]:
    return [raw.offset() for raw in course.select(batch)]


@pytest.mark.parametrize(
    ("window", "timestamp", "held"),
    [
        (TimeRange(1000, 2000), 999, False),
        (TimeRange(1000, 2000), 1000, True),
        (TimeRange(1000, 2000), 1999, True),
        (TimeRange(1000, 2000), 2000, False),
        (TimeRange(1000, 2000), -1, False),
        (TimeRange(), -1, True),
        (TimeRange(), 10**15, True),
    ],
)
def test_a_window_includes_its_start_and_excludes_its_end(
    window: TimeRange, timestamp: int, held: bool
) -> None:
    """So that two replays with a bound in common share no record; -1 is no timestamp."""
    assert window.contains(timestamp) is held


@pytest.mark.parametrize(("bounds", "empty"), [((1, 2), False), ((2, 2), True), ((3, 2), True)])
def test_a_window_that_can_hold_nothing_is_empty(bounds: tuple[int, int], empty: bool) -> None:
    assert TimeRange(*bounds).empty is empty


def test_a_range_ends_at_the_groups_position() -> None:
    """No position means that nothing was; a window that begins beyond it holds nothing."""
    first = {A: 5, B: 9, ("orders", 2): 0, ("orders", 4): -1}
    positions = {A: 8, B: 9, ("orders", 3): 7, ("orders", 4): 7}
    settled = {at: Settled(position) for at, position in positions.items()}
    assert settled_ranges(first, settled) == {A: range(5, 8)}
    assert settled_ranges(first, {B: Settled(9, [(12, 20)])}) == {B: range(9, 20)}


def test_only_done_records_beyond_the_position_are_replayed() -> None:
    """The rest is in the service's hands."""
    settled = Settled(2, [(3, 5), (8, 9)])
    course = OffsetRanges({A: range(1, 9)}, TimeRange(), {A: settled})
    assert picked(course, *(record(A, offset) for offset in range(1, 12))) == [1, 3, 4, 8]
    assert (course.finished, course.read) == (True, 8)


def test_a_replay_is_over_with_the_last_record_of_each_range() -> None:
    """The last one need not be waited beyond."""
    course = OffsetRanges({A: range(5, 8), B: range(2)}, TimeRange())
    assert picked(course, record(A, 5), record(A, 6), record(A, 7)) == [5, 6, 7]
    assert (course.finished, course.is_unread(A), course.is_unread(B)) == (False, False, True)
    assert course.ends == {A: 0, B: 2}
    assert picked(course, record(B, 0), record(B, 1)) == [0, 1]
    assert course.finished
    assert (course.read, course.total) == (5, 5)


def test_settled_records_that_are_gone_are_not_waited_for() -> None:
    """The next record, or the partition's end, shows that nothing of the stretch is left."""
    course = OffsetRanges({A: range(9), B: range(9)}, TimeRange())
    assert picked(course, record(A, 3), record(A, 12)) == [3]
    assert picked(course, record(B, 3), event(B, 4)) == [3]
    assert course.finished


def test_records_after_the_range_are_left_to_the_service() -> None:
    """A client hands over what it had fetched before it was paused."""
    course = OffsetRanges({A: range(2)}, TimeRange())
    assert picked(course, record(A, 0), record(A, 1), record(A, 2), event(A, 3)) == [0, 1]
    assert picked(course, record(A, 3)) == []
    assert course.read == 2


def test_consumer_events_are_left_to_the_poll_loop() -> None:
    """They say nothing about how far it is."""
    course = OffsetRanges({A: range(2)}, TimeRange())
    trouble = event(A, -1, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert course.select([trouble]) == [trouble]
    assert not course.finished


def test_timestamps_that_go_back_are_found() -> None:
    """A producer's clock, or its queue, may; so a stretch is read to its end."""
    course = OffsetRanges({A: range(4)}, TimeRange(100, 200))
    stamps = [150, 250, 90, 199]
    assert picked(course, *(record(A, i, stamp) for i, stamp in enumerate(stamps))) == [0, 3]


logs = st.dictionaries(st.integers(0, 40), st.integers(-1, 20), max_size=30)


@given(
    log=logs,
    bounds=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    span=st.tuples(st.integers(0, 40), st.integers(1, 40)),
    cuts=st.lists(st.integers(1, 10)),
)
def test_exactly_the_records_of_range_and_window_are_picked(
    log: dict[int, int], bounds: tuple[int, int], span: tuple[int, int], cuts: Sequence[int]
) -> None:
    """Offsets with gaps, batches of any size; and with the log's end the course is over."""
    stretch = range(span[0], span[0] + span[1])
    course = OffsetRanges({A: stretch}, TimeRange(*bounds))
    offsets = sorted(offset for offset in log if offset >= stretch.start)
    batch: list[Fields] = [record(A, offset, log[offset]) for offset in offsets]
    batch.append(event(A, 41))
    found: list[int] = []
    for cut in [*cuts, len(batch)]:
        found += picked(course, *batch[:cut])
        batch = batch[cut:]
    wanted = [o for o in offsets if o in stretch and bounds[0] <= log[o] < bounds[1]]
    assert found == wanted
    assert course.finished
    assert course.read == course.total
