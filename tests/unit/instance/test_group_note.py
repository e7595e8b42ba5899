"""What is remembered of a group's positions, and which of them are lost."""

from pathlib import Path

import pytest

from kworker.core.offset_map import TopicIdentity
from kworker.instance.group_note import GroupNote, lost_partitions

ONE, TWO = TopicIdentity("cluster", "one"), TopicIdentity("cluster", "two")
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


@pytest.fixture
def note(tmp_path: Path) -> GroupNote:
    return GroupNote(tmp_path / "state")


def test_noted_positions_stay_while_their_topic_is_the_same(note: GroupNote) -> None:
    """A topic may be left out of `source.topics` for months, and its positions expire."""
    assert not note.exists
    assert note.positions() == {}
    note.write("orders", "cluster", [A0, B0], {"a": ONE, "b": TWO})
    note.write("orders", "cluster", [A1], {"a": ONE})
    assert note.exists
    assert note.positions() == {A0: "one", A1: "one", B0: "two"}
    note.write("orders", "cluster", [A1], {"a": TWO})  # made again
    assert note.positions() == {A1: "two", B0: "two"}
    note.write("orders", "cluster", [A0], {})  # nobody tells
    assert note.positions() == {A0: "two", A1: "two", B0: "two"}


@pytest.mark.parametrize("text", ['{"group": "orders", "cluster": "c"}', "", "{"])
def test_an_old_or_damaged_note_tells_of_no_position(note: GroupNote, text: str) -> None:
    note.path.parent.mkdir()
    note.path.write_text(text)
    assert (note.exists, note.positions()) == (True, {})


@pytest.mark.parametrize(
    ("had", "ids", "gone"),
    [
        ({A0: "one"}, {"a": ONE}, [A0]),
        ({A0: "one"}, {"a": TWO}, []),
        ({A0: "one"}, {}, [A0]),
        ({A0: ""}, {"a": ONE}, [A0]),
        ({B0: "one"}, {"a": ONE, "b": ONE}, []),
    ],
)
def test_only_positions_of_the_present_topic_are_lost(
    had: dict[tuple[str, int], str], ids: dict[str, TopicIdentity], gone: list[tuple[str, int]]
) -> None:
    """Where nobody knows which topic it is, a person decides."""
    assert lost_partitions(had, [A0, A1], ids) == gone
