"""Points in time as a person types them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.times import EPOCH_MS_MIN, ago, iso, parse_time

NOW = 1_760_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.500+01:00", 1_700_000_000_500),
        ("2023-11-14 22:13:20.999999", 1_700_000_000_999),
        ("2023-11-14", 1_699_920_000_000),
        ("-2h", NOW - 7_200_000),
        ("-1.5s", NOW - 1_500),
        ("-0s", NOW),
    ],
)
def test_a_time_is_iso_8601_an_age_or_epoch_milliseconds(text, ms):
    assert parse_time(text, NOW) == ms


@pytest.mark.parametrize(
    "text", ["", "now", "2h", "-2", "--2h", "1700000000", "2023-13-01", "²", "-2h ", "1e12"]
)
def test_an_invalid_time_is_refused(text):
    """Epoch seconds among them: they would be a time in 1970."""
    with pytest.raises(
        ValueError, match=r"expected a time in ISO 8601|is too small for epoch milliseconds"
    ):
        parse_time(text, NOW)


@given(st.integers(EPOCH_MS_MIN, 4_102_444_800_000))
def test_times_are_exact_to_the_millisecond(ms):
    """Between two records of one second there may be many."""
    at = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    assert parse_time(at.isoformat(), NOW) == ms
    assert parse_time(str(ms), NOW) == ms


@given(st.integers())
def test_any_timestamp_can_be_shown(ms):
    """A header may claim it."""
    assert iso(ms)
    assert ago(ms, NOW)


def test_an_age_is_told_in_its_largest_unit():
    found = [ago(NOW - s * 1000, NOW) for s in (-5, 0, 59, 60, 3_599, 7_200, 86_400 * 3)]
    assert found == ["0s", "0s", "59s", "1m", "59m", "2h", "3d"]
