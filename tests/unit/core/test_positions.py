"""Where a group stands in a partition, and where it may be put."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from kworker.core.offset_map import Settled
from kworker.core.positions import GroupPosition, Move

BOUNDS = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted)


@given(BOUNDS, st.none() | st.integers(0, 120))
def test_lag_and_expired_count_records_of_the_log(bounds, committed):
    row = GroupPosition("t", 0, committed, *bounds)
    offsets = range(bounds[0], bounds[1])
    if committed is None:
        assert (row.lag, row.expired) == (None, 0)
    else:
        assert row.lag == sum(offset >= committed for offset in offsets)
        assert row.expired == len(range(committed, bounds[0]))


@given(BOUNDS, st.integers(1, 120))
def test_a_position_of_a_recreated_topic_has_the_full_lag(bounds, committed):
    low, high = bounds
    row = GroupPosition("t", 0, committed, low, high, Settled(0))
    assert (row.made_again, row.lag, row.expired) == (True, high - low, 0)


@given(
    BOUNDS,
    st.integers(0, 60),
    st.lists(st.integers(1, 10), max_size=8).map(lambda n: n[len(n) % 2 :]),
)
def test_what_is_unfinished_is_in_the_log_and_not_in_the_map(bounds, committed, lengths):
    """However much of the map has expired since."""
    steps = list(accumulate(lengths, initial=committed))[1:]
    settled = Settled(committed, list(zip(steps[::2], steps[1::2], strict=True)))
    row = GroupPosition("t", 0, committed, *bounds, settled)
    left = [offset for offset in range(*bounds) if not settled.has(offset)]
    assert (row.unfinished, row.made_again) == (len(left), False)
    assert row.unfinished + row.finished_beyond == row.lag == row.behind


def test_without_a_position_all_that_is_there_is_behind():
    row = GroupPosition("t", 0, None, 3, 10, Settled(0))
    assert (row.lag, row.behind, row.unfinished) == (None, 7, 7)


@given(BOUNDS, st.integers(0, 200))
def test_a_move_is_clamped_to_the_partition(bounds, wanted):
    """Outside, the group would stop at a gap."""
    low, high = bounds
    move = Move(GroupPosition("t", 0, None, low, high), wanted)
    assert move.position == min(range(low, high + 1), key=lambda offset: abs(offset - wanted))
    assert move.clamped is not (low <= wanted <= high)
