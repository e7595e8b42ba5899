"""How bytes and texts from strangers are shown on a terminal."""

import pytest

from kworker.cli.text import content, printable


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
