"""What a person types to say which dead letters are meant."""

import pytest

from kworker.cli.dead.options import selection
from kworker.dead_letters.dead_letter import DeadLetterPosition
from kworker.dead_letters.selection import Selection
from kworker.errors import UsageError

NOW = 1_760_000_000_000


@pytest.mark.parametrize(
    ("select", "meant"),
    [
        ([], Selection()),
        (["reason=exhausted,exception=a.B"], Selection(reason="exhausted", exception="a.B")),
        (["reason=exhausted", "key=k"], Selection(reason="exhausted", key="k")),
        (["since=-2h"], Selection(since_ms=NOW - 7_200_000)),
        (["key=a,b"], Selection(key="a,b")),
        (["key=a=b,reason=x"], Selection(key="a=b", reason="x")),
        (["key="], Selection(key="")),
    ],
)
def test_conditions_are_named_and_a_key_may_have_commas(select, meant):
    assert selection(None, select, NOW) == meant


@pytest.mark.parametrize(
    "select",
    [["reasons=x"], ["x"], [""], ["reason=x,foo=1"], ["key=a", "key=b"], ["since=yesterday"]],
)
def test_a_mistake_in_a_condition_is_told(select):
    """Else it would select all, or nothing."""
    with pytest.raises(UsageError, match="--select"):
        selection(None, select, NOW)


def test_a_position_is_the_dead_letters_or_its_sources():
    found = selection(["3:17", "orders:3:9045"], None, NOW)
    assert found.places == {DeadLetterPosition(3, 17)}
    assert found.sources == {("orders", 3, 9045)}


@pytest.mark.parametrize("text", ["", "3", "3:x", "a:b", ":3:4", "a:b:3:4", "3:-1", "3:²", "3:4:"])
def test_a_mistake_in_a_position_is_told(text):
    with pytest.raises(UsageError, match="expected PARTITION:OFFSET"):
        selection([text], None, NOW)
