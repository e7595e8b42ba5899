"""When a failing record runs again in place."""

from hypothesis import given
from hypothesis import strategies as st

from kworker.core.retry import InPlaceRetry


def test_it_waits_twice_as_long_each_time_up_to_a_limit() -> None:
    policy = InPlaceRetry(first_s=1.0, most_s=30.0)
    assert [policy.delay_s(attempt) for attempt in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


@given(attempt=st.integers(1, 10**9))
def test_no_number_of_attempts_breaks_it(attempt: int) -> None:
    """A poison record is tried for as long as the worker lives."""
    assert 1.0 <= InPlaceRetry().delay_s(attempt) <= 30.0
