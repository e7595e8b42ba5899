"""Lists as JSON in limited room: it never takes more, and each list keeps its first rows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.instance.fitted_json import encode

ROWS = st.recursive(st.integers() | st.text() | st.none(), st.lists, max_leaves=5)
BRACKETS = len("[[],[],[],[],[],[],[]]")


@given(st.lists(st.lists(ROWS, max_size=20), max_size=7), st.integers(BRACKETS, 500))
def test_the_text_fits_and_is_json_whatever_the_lists(parts: list[list[object]], room: int) -> None:
    """Shared memory ends where the room ends: one byte more stops the worker."""
    data = encode(parts, room)
    assert len(data) <= room
    told = json.loads(data)
    assert told == [part[: len(kept)] for part, kept in zip(parts, told, strict=True)]


def test_the_exact_size_is_not_cut_and_one_byte_less_is() -> None:
    parts = [["ab", "cd"], [1, 2, 3]]
    whole = json.dumps(parts, separators=(",", ":")).encode()
    assert encode(parts, len(whole)) == whole
    assert len(encode(parts, len(whole) - 1)) < len(whole)


def test_no_room_for_the_brackets_is_an_error() -> None:
    assert encode([["ab"]] * 7, BRACKETS) == b"[[],[],[],[],[],[],[]]"
    with pytest.raises(ValueError, match="7 lists need 22 bytes; there are 21"):
        encode([["ab"]] * 7, BRACKETS - 1)
