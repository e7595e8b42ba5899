"""Durations are counted by the smallest bound that they keep, and added up by how acts ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.durations import BOUNDS_S, Durations, EndTimes, total


@pytest.mark.parametrize(
    ("lasted_s", "index"),
    [(0.0, 0), (0.001, 0), (0.0011, 1), (0.02, 3), (1.0, 6), (100.0, 10), (101.0, 11)],
)
def test_a_run_counts_by_the_bound_that_it_keeps(lasted_s: float, index: int) -> None:
    durations = Durations()
    durations.add(1, round(lasted_s * 1e9))
    assert [at for at, count in enumerate(durations.counts) if count] == [index]


def test_runs_that_were_measured_together_count_with_their_mean() -> None:
    durations = Durations()
    durations.add(100, 200_000_000)
    assert durations.counts[1] == 100
    assert durations.sum_ns == 200_000_000


@given(st.lists(st.integers(0, 200_000_000_000)), st.integers(0, 5))
def test_what_is_counted_later_is_counted_the_same(each_ns: list[int], before: int) -> None:
    later, at_once = Durations(), Durations()
    for i, lasted_ns in enumerate(each_ns):
        if i == before:
            later.tally()
        later.add_later(lasted_ns)
        at_once.add(1, lasted_ns)
    for _ in range(2):
        later.tally()
        assert (later.counts, later.sum_ns) == (at_once.counts, at_once.sum_ns)


def test_the_total_is_of_all_threads_and_of_none() -> None:
    one, two = Durations(), Durations()
    one.add(2, 1_000_000)
    two.add(1, 5_000_000_000)
    assert total([one, two]) == [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5_001_000]
    assert total([]) == [0] * (len(BOUNDS_S) + 2)


def test_acts_that_failed_are_told_apart_with_their_time() -> None:
    """A call that fails takes its time-out, and would hide how fast the others are."""
    times = EndTimes()
    times.add(0.001, failed=False)
    times.add(0.003, failed=False)
    times.add(2.0, failed=True)
    assert times.totals == (2, 4_000, 1, 2_000_000)
