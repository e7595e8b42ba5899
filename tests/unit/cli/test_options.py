"""Options that many verbs share."""

import pytest

from kworker.cli.options import parse_rate
from kworker.errors import UsageError


def test_a_rate_is_a_number_a_second():
    assert [parse_rate(text) for text in (None, "50/s", "50", "0.5/s")] == [None, 50, 50, 0.5]


@pytest.mark.parametrize("text", ["", "0", "0/s", "-1/s", "fast", "5/m", "nan"])
def test_a_mistake_in_a_rate_is_told(text):
    with pytest.raises(UsageError, match="--rate"):
        parse_rate(text)
