"""kworker's own file (note) in a checkpoint, and a reset's new checkpoint beside the old one."""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from kworker.spark.checkpoints.checked_files import Damaged, parse_object, read_text
from kworker.spark.checkpoints.checkpoint import Positions
from kworker.spark.checkpoints.folders import Folder

_NOTE = "kworker.json"
_MOVING = "moving"  # in a draft


@dataclass(frozen=True, slots=True)
class Note:
    """The contents of kworker's own file in a checkpoint.

    The file names the results topic and tells if batches are merged into the table. The checkpoint
    begins at the positions `start`; None is the beginning of the topic. `at_ms` is the time at
    which a person chose these positions; 0 if the query is to continue where the table ends.
    `missing` is empty except after a reset to the end of the table. It then has the offset at which
    the table ends, but only for those partitions in which the topic no longer held this offset. For
    these, `start` has the nearest offset that the topic held. In all other partitions, the query
    continues where the table ends.
    """

    topic: str
    topic_id: str
    merged: bool
    start: Positions | None = None
    at_ms: int = 0
    missing: Positions = field(default_factory=dict)


def read_note(folder: Folder) -> Note | None:
    """Reads the note, kworker's own file in a checkpoint; None if the checkpoint has no note.

    Raises Damaged if the note is unreadable.
    """
    if not folder.exists(_NOTE):
        return None
    path = f"{folder}/{_NOTE}"
    found = parse_object(path, read_text(folder, _NOTE))
    try:
        start, merged = found["start"], bool(found["merged"])
        parts = None if start is None else _positions(start)
        topic, topic_id = str(found["topic"]), str(found["topic_id"])
        missing = _positions(found.get("missing", {}))
        return Note(topic, topic_id, merged, parts, int(found.get("at_ms", 0)), missing)
    except (KeyError, AttributeError, TypeError, ValueError):
        raise Damaged(
            f"{path} lacks fields that kworker writes, or holds wrong values; reset the checkpoint"
        ) from None


def _positions(found: dict[str, Any]) -> Positions:
    return {int(part): int(at) for part, at in found.items()}


def write_note(folder: Folder, note: Note) -> None:
    """Creates or replaces the note, kworker's own file in a checkpoint, in one step.

    Raises OSError when the disk is full.
    """
    folder.write(_NOTE, json.dumps(asdict(note)).encode())


def write_draft(folder: Folder, note: Note) -> None:
    """Creates a new checkpoint beside the current one. Raises OSError when the disk is full."""
    write_note(_draft(folder), note)


def apply_draft(folder: Folder, now_ms: int) -> Folder | None:
    """Replaces a checkpoint by the one from `write_draft`; returns the renamed old one, if any.

    An object store renames file by file, so a kill may leave a part of the old checkpoint in place.
    A marker file in the new checkpoint shows this: while it exists, no query uses the old files.
    """
    draft = _draft(folder)
    note = read_note(draft)
    assert note is not None
    draft.write(_MOVING, b"")
    aside = folder.rename(f"{folder.name}.{_stamp(now_ms)}") if folder.exists() else None
    write_note(folder, note)
    draft.delete(_MOVING)
    draft.remove()
    return aside


def is_half_reset(folder: Folder) -> bool:
    """True if a reset was interrupted, so that `folder` is missing or incomplete.

    The new checkpoint is then still beside it.
    """
    draft = _draft(folder)
    return draft.exists() and (draft.exists(_MOVING) or not folder.exists())


def current_folder(folder: Folder) -> Folder:
    """The new checkpoint after an interrupted reset of `folder`; else `folder` itself."""
    return _draft(folder) if is_half_reset(folder) else folder


def _draft(folder: Folder) -> Folder:
    return folder.beside(f".{folder.name}.new")


def _stamp(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"
