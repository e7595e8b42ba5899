"""The message that handlers are given."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kworker import Message
from kworker.core.message import Undecodable


def test_a_message_has_the_records_fields() -> None:
    headers = (("a", b"1"), ("a", None))
    message = Message("orders", 3, 42, 1700, b"k", b"v", headers, attempt=2, last=True)
    assert (message.topic, message.partition, message.offset) == ("orders", 3, 42)
    assert (message.timestamp, message.key, message.value) == (1700, b"k", b"v")
    assert (message.headers, message.attempt, message.last) == (headers, 2, True)


@pytest.mark.parametrize("name", ["topic", "value", "headers", "attempt", "anything"])
def test_a_message_is_frozen(name: str) -> None:
    """A handler that changed it would change what a dead letter holds."""
    with pytest.raises(AttributeError):
        setattr(Message("orders"), name, None)


@pytest.mark.parametrize(
    ("value", "parsed"), [(b'{"a": [1, "\xc3\xa9"]}', {"a": [1, "é"]}), (b"0", 0), (None, None)]
)
def test_json_is_parsed_and_a_null_value_is_none(value: bytes | None, parsed: object) -> None:
    assert Message("orders", value=value).json() == parsed


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"\xff",
        b"nul",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 5_000,
        b"\x00",
        b'"\x01"',
    ],
)
def test_invalid_json_is_undecodable_and_a_value_error(value: bytes) -> None:
    """Invalid JSON is poison at once; nesting too deep and too many digits count as that."""
    with pytest.raises(ValueError, match="not JSON") as caught:
        Message("orders", value=value).json()
    assert isinstance(caught.value, Undecodable)


def test_pythons_nan_and_infinity_are_parsed() -> None:
    """NaN is what Python's own json writes."""
    parsed = Message("orders", value=b'{"a": NaN, "b": -Infinity, "c": 1e400}').json()
    assert math.isnan(parsed["a"])
    assert (parsed["b"], parsed["c"]) == (-math.inf, math.inf)


def test_an_undecodable_error_hides_the_value() -> None:
    """Values do not belong into logs; the error itself may have kept the whole document."""
    with pytest.raises(Undecodable) as caught:
        Message("orders", value=b'{"card": secret}').json()
    assert "secret" not in f"{caught.value!r} {vars(caught.value)}"
    assert caught.value.__cause__ is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """JSON as anybody may write it, and nearly JSON."""
    options = {"indent": draw(st.sampled_from([None, 1])), "ensure_ascii": draw(st.booleans())}
    text = json.dumps(draw(JSON_VALUES), **options)
    around = [draw(st.sampled_from(["", " ", "\n", "x", "{}", "\0"])) for _ in range(2)]
    whole = f"{around[0]}{text}{around[1]}".encode(draw(st.sampled_from(ENCODINGS)), "replace")
    return whole[: draw(st.integers(0, len(whole)))] if draw(st.booleans()) else whole


NUMBERS = st.from_regex(rb"\A-?[0-9]{1,25}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?\Z")


@given(documents() | NUMBERS | st.binary())
@example(b'{"a": 1, "b": 2, "a": 3}')
@example(b"[" * 500 + b"]" * 500)
@example(b'"\\ud800"')
def test_json_is_what_pythons_json_makes_of_a_value(value: bytes) -> None:
    """Types, the order of keys and each digit, too."""
    try:
        expected = json.loads(value)
    except ValueError:
        with pytest.raises(Undecodable):
            Message("orders", value=value).json()
    else:
        assert repr(Message("orders", value=value).json()) == repr(expected)


def test_huge_integers_survive() -> None:
    assert Message("orders", value=json.dumps(10**30).encode()).json() == 10**30


def test_text_is_utf8() -> None:
    assert Message("orders", value="é".encode()).text() == "é"
    assert Message("orders").text() is None
    with pytest.raises(Undecodable):
        Message("orders", value=b"\xff").text()


def test_a_message_made_by_hand_has_all_the_time_there_is() -> None:
    assert Message("orders").remaining() == float("inf")


def test_a_message_knows_its_last_attempt() -> None:
    assert Message("orders", attempt=4, last=True).last
    assert not Message("orders", attempt=4).last


def test_the_repr_names_the_place_and_hides_the_value() -> None:
    """Values do not belong into logs."""
    text = repr(Message("orders", 3, 42, key=b"secret", value=b"secret", attempt=2))
    assert text == "Message(orders/3/42, attempt=2)"
