"""Where a group stands in a partition, and where it may be put."""

from hypothesis import given
from hypothesis import strategies as st

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


@given(BOUNDS, st.integers(0, 120))
def test_a_position_of_a_recreated_topic_has_the_full_lag(bounds, committed):
    low, high = bounds
    row = GroupPosition("t", 0, committed, low, high, made_again=True)
    assert (row.lag, row.expired) == (high - low, 0)


@given(BOUNDS, st.integers(0, 200))
def test_a_move_is_clamped_to_the_partition(bounds, wanted):
    """Outside, the group would stop at a gap."""
    low, high = bounds
    move = Move(GroupPosition("t", 0, None, low, high), wanted)
    assert move.position == min(range(low, high + 1), key=lambda offset: abs(offset - wanted))
    assert move.clamped is not (low <= wanted <= high)
