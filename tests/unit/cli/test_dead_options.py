"""What a person types to say which dead letters are meant, and what is shown of them."""

import pytest

from kworker.cli.dead.options import selection
from kworker.cli.options import parse_rate
from kworker.cli.text import content, printable
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


def test_a_rate_is_a_number_a_second():
    assert [parse_rate(text) for text in (None, "50/s", "50", "0.5/s")] == [None, 50, 50, 0.5]


@pytest.mark.parametrize("text", ["", "0", "0/s", "-1/s", "fast", "5/m", "nan"])
def test_a_mistake_in_a_rate_is_told(text):
    with pytest.raises(UsageError, match="--rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (b"", ""),
        ("grün\n".encode(), "grün\n"),
        (b"\xff\x00", "hex ff00"),
        (b"\x1b[2J", "hex 1b5b324a"),
        (b"a\x00", "hex 6100"),
    ],
)
def test_bytes_are_text_or_hex_where_they_are_none(value, shown):
    assert content(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"a":[1,"x"]}', '{\n  "a": [\n    1,\n    "x"\n  ]\n}'),
        (b"17", "17"),
        (b'{"a": 1.50}', '{"a": 1.50}'),
        (b'{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        (b"[" * 100_000, "[" * 100_000),
        (b"9" * 5_000, "9" * 5_000),
    ],
)
def test_json_is_indented_only_if_its_meaning_stays(value, shown):
    """Who looks for the fault must see what was there."""
    assert content(value, pretty=True) == shown


def test_nothing_commands_the_terminal():
    assert printable("a\n\tb\x1b\x9b\u202e\xa0") == "a\n\tb\\x1b\\x9b\\u202e\\xa0"
