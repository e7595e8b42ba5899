"""Dead letters as lines of JSON, and what is said of lines that cannot be imported."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.message import Fields
from kworker.core.record_lines import BadLine
from kworker.dead_letters.dead_letter import DeadLetter
from kworker.dead_letters.lines import as_data, format_line, parse_line
from tests.support.dead import NOW, dead_headers

TOPIC = "orders.dead"
CONTENT = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)


def letter(key: bytes | None = b"k", value: bytes | None = b"v", own=(), **told) -> DeadLetter:
    headers = tuple(dead_headers(own=own, **told))
    return DeadLetter.of(Fields((TOPIC, 3, 17), 123, key, value, headers))


@given(CONTENT, CONTENT, st.lists(st.tuples(st.text(max_size=9), CONTENT), max_size=5))
def test_an_exported_record_is_imported_byte_for_byte(key, value, own):
    """And on one line, whatever it holds."""
    exported = letter(key, value, own, redriven=2)
    line = format_line(exported, TOPIC)
    assert "\n" not in line
    edit = parse_line(line.encode(), TOPIC)
    assert (edit.key, edit.value, edit.headers) == (key, value, own)
    assert edit.identity == exported.identity
    assert (edit.envelope.source, edit.envelope.redriven) == (exported.source, 2)


def test_an_edited_dead_letter_of_a_replay_stays_one():
    line = format_line(letter(replay="0a1b2c"), TOPIC)
    assert parse_line(line.encode(), TOPIC).envelope.replay == b"0a1b2c"
    assert parse_line(format_line(letter(), TOPIC).encode(), TOPIC).envelope.replay == b""


def test_a_line_says_where_what_happened_and_the_record():
    """Scripts read it as well as people."""
    assert as_data(letter(b"\xff", None, [("h", b"1")]), TOPIC) == {
        "position": {"topic": TOPIC, "partition": 3, "offset": 17, "timestamp": 123},
        "source": {"topic": "orders", "partition": 0, "offset": 5, "timestamp": 1700000000000},
        "reason": "exhausted",
        "exception": "requests.exceptions.Timeout",
        "message": "no answer",
        "attempt": 4,
        "failed_at": NOW,
        "redriven": 0,
        "key": {"base64": "/w=="},
        "value": None,
        "headers": [["h", "1"]],
    }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"key": 5}, 'key: expected text, {"base64": …} or null, got 5'),
        ({"value": {"base64": "?"}}, "value: the value of .base64. is not valid base64"),
        ({"value": {"base64": "", "hex": ""}}, "value: expected text"),
        ({"value": "\ud800"}, "value: the text has half of a surrogate pair"),
        ({"headers": {"a": "b"}}, "headers: expected a list"),
        ({"replay": 7}, "replay: expected a text, got 7"),
        ({"headers": [["a", "b"], ["a"]]}, r'headers\[1\]: expected \["name", value\], got'),
        ({"headers": [[1, "b"]]}, r"headers\[0\]: expected"),
        ({"headers": [["\udfff", "b"]]}, r"headers\[0\]: the text has half of a surrogate pair"),
        ({"redriven": -1}, "redriven: expected a whole number of at least 0, got -1"),
        ({"redriven": True}, "redriven: expected a whole number of at least 0, got true"),
        ({"position": "3:17"}, "position: expected an object as kworker dead export writes it"),
        ({"position": {"topic": "other.dead"}}, "position.topic: expected orders.dead, got 'other"),
        ({"position": {"topic": TOPIC, "partition": 1}}, "position.offset is missing"),
        ({"source": None}, "source: expected an object as kworker dead export writes it, got null"),
        ({"source": {"topic": ""}}, "source.topic: expected a topic"),
    ],
)
def test_a_bad_line_is_told_by_what_is_wrong(change, problem):
    """The person who edits it looks for that word."""
    data = {**as_data(letter(), TOPIC), **change}
    with pytest.raises(BadLine, match=problem):
        parse_line(json.dumps(data).encode(), TOPIC)


@pytest.mark.parametrize("name", ["position", "source", "redriven", "key", "value", "headers"])
def test_a_missing_field_is_refused(name):
    """A mistyped name would else become a null value."""
    data = as_data(letter(), TOPIC)
    del data[name]
    with pytest.raises(BadLine, match=f"{name} is missing"):
        parse_line(json.dumps(data).encode(), TOPIC)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "not JSON"),
        (b"\xff{}", "the line is not UTF-8"),
        (b"[]", "the line is not a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"redriven": ' + b"9" * 5_000 + b"}", "not JSON"),
    ],
)
def test_a_line_that_is_no_object_is_refused(line, problem):
    with pytest.raises(BadLine, match=problem):
        parse_line(line, TOPIC)
