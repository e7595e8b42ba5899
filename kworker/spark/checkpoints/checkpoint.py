"""A query's checkpoint as files: how far it says the table is, and what of it is damaged."""

import json
import re
import zlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from kworker.errors import KworkerError
from kworker.spark.checkpoints.folders import Folder

Positions = dict[int, int]
"""By partition of the results topic: everything below it was read."""

_NOTE = "kworker.json"
_MOVING = "moving"  # in a draft
_VERSION = re.compile(r"v\d+")
_FOLDERS = ("offsets", "commits", "sources", "state")
_STATE = re.compile(r"\d.*\.")


class Damaged(KworkerError):
    """A query must not start: it would skip or repeat results, and say nothing.

    `begin` is where a new checkpoint had best begin; "" when that would not help.
    """

    def __init__(self, problem: str, begin: str = "committed") -> None:
        super().__init__(problem)
        self.begin = begin


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a query has come. Spark fixes the range of a batch, writes it, and notes its end."""

    planned: int  # the last batch whose range is fixed
    finished: int | None  # the last that is in the table for certain
    reached: Positions  # where the planned one ends
    begun: Positions  # and where it begins; of the first one not known
    query: str  # the id by which a table knows its batches

    @property
    def complete(self) -> bool:
        """Whether the table holds all that was planned."""
        return self.finished is not None and self.finished >= self.planned


@dataclass(frozen=True, slots=True)
class Note:
    """What kworker adds to a checkpoint: its topic, how it is written, where it begins.

    `at_ms` is when a person said so; 0 where the table was asked, or is to be.
    """

    topic: str
    topic_id: str
    merged: bool
    start: Positions | None = None
    at_ms: int = 0


def read(folder: Folder, topic: str) -> Checkpoint | None:
    """What Spark will go by; None for a query that begins. Raises Damaged, naming the file."""
    if not folder.exists("metadata") and not any(map(folder.names, _FOLDERS)):
        return None
    query = _identity(folder)
    offsets, commits = _batches(folder, "offsets"), _batches(folder, "commits")
    if commits and (not offsets or commits[-1] > offsets[-1]):
        missing = f"{folder}/offsets/{commits[-1]}"
        raise Damaged(f"{missing} is missing, though that batch was written")
    if not offsets:
        return None
    if commits:
        _read_commit(folder, commits[-1])
    planned = offsets[-1]
    begun: Positions = {}
    if planned:  # Spark starts from these two
        begun = _read_range(folder, planned - 1, topic)
    reached = _read_range(folder, planned, topic)
    finished = _finished(offsets, commits)
    return Checkpoint(planned, None if finished < 0 else finished, reached, begun, query)


def query_of(folder: Folder) -> str:
    """The id of the query that goes on; "" for one that begins, or that nobody can tell."""
    try:
        return _identity(folder)
    except Damaged:
        return ""


def range_of(folder: Folder, batch: int, topic: str) -> tuple[Positions | None, Positions]:
    """Where a batch that is planned begins, unless nobody noted it, and where it ends."""
    begin = _read_range(folder, batch - 1, topic) if batch else None
    return begin, _read_range(folder, batch, topic)


def _batches(folder: Folder, below: str) -> list[int]:
    """The numbers of the files there, rising; Spark's drafts and checksums have other names."""
    return sorted(int(name) for name in folder.names(below) if name.isdigit())


def _finished(planned: list[int], noted: list[int]) -> int:
    """The last batch that is in the table for certain, or -1.

    A batch is planned when the one before it is there, whatever became of the note of it.
    """
    return max([-1, *noted[-1:], *(batch - 1 for batch in planned[-1:])])


def _identity(folder: Folder) -> str:
    """Without its file a query gets a new id, and a table no longer knows its batches."""
    path = f"{folder}/metadata"
    found = _json(path, _text(folder, "metadata"))
    if not isinstance(name := found.get("id"), str):
        raise Damaged(f"{path} does not hold the query's id")
    return name


def _read_commit(folder: Folder, batch: int) -> None:
    name = f"commits/{batch}"
    path = f"{folder}/{name}"
    version, *lines = _text(folder, name).splitlines()
    if not _VERSION.fullmatch(version) or len(lines) != 1:
        raise Damaged(f"{path} is truncated")
    _json(path, lines[0])


def _read_range(folder: Folder, batch: int, topic: str) -> Positions:
    """Where a batch ends: a line of version, one of settings, and one for each source."""
    name = f"offsets/{batch}"
    path = f"{folder}/{name}"
    version, *lines = _text(folder, name).splitlines()
    if not _VERSION.fullmatch(version) or len(lines) != 2:
        raise Damaged(f"{path} is truncated")
    _json(path, lines[0])
    found = _json(path, lines[1])
    if other := [name for name in found if name != topic]:
        raise Damaged(f"{path} is of the topic {other[0]}, not {topic}", "earliest")
    try:
        return {int(part): int(offset) for part, offset in found[topic].items()}
    except (KeyError, AttributeError, TypeError, ValueError):
        raise Damaged(f"{path} does not hold the offsets of {topic}") from None


def _text(folder: Folder, name: str) -> str:
    path = f"{folder}/{name}"
    try:
        content = folder.read(name)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from None
    if content is None:
        raise Damaged(f"{path} is missing")
    if not content:
        raise Damaged(f"{path} is empty")
    if not _matches(content, _sums(folder, name)):
        raise Damaged(f"{path} does not match its checksum")
    return content.decode(errors="replace")


def _sums(folder: Folder, name: str) -> bytes:
    """A file's checksums; none where the file system keeps its own, or a kill left none."""
    path = PurePosixPath(name)
    try:
        return folder.read(str(path.with_name(f".{path.name}.crc"))) or b""
    except OSError:
        return b""


def _matches(content: bytes, sums: bytes) -> bool:
    """Whether Spark's own reader would take it."""
    each = int.from_bytes(sums[4:8], "big")
    if not each:
        return True
    parts = (content[at : at + each] for at in range(0, len(content), each))
    return sums[8:] == b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)


def damaged_state(folder: Folder) -> str | None:
    """A file of a query's state that is not what Spark wrote, if one can be told.

    Reads all of it, so this is asked when Spark has failed, which may not say on which file.
    """
    for name in folder.walk("state"):
        if not _STATE.match(PurePosixPath(name).name):
            continue
        try:
            _text(folder, name)
        except Damaged:
            return f"{folder}/{name}"
    return None


def _json(path: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Damaged(f"{path} is not readable: truncated, or written by something else")
    return found


def unplan(folder: Folder, batch: int) -> None:
    """Forgets the range of a batch that is not in its table: Spark fixes another one.

    The state after it goes first: a snapshot of that would be taken for what is made anew.
    """
    later = (f"{batch + 1}.", f".{batch + 1}.")
    for name in folder.walk("state"):
        if PurePosixPath(name).name.startswith(later):
            folder.delete(name)
    for name in (str(batch), f".{batch}.crc"):
        folder.delete(f"offsets/{name}")


@dataclass(frozen=True, slots=True)
class CheckpointSurvey:
    """What can still be read of a checkpoint that may be damaged."""

    settled: Positions  # the end of the last finished batch, or of one before it
    reached: Positions  # the end of the last batch that may be in the table


def survey(folder: Folder, topic: str) -> CheckpointSurvey:
    """For a reset: the best of what is left."""
    batches = _batches(folder, "offsets")
    ends = {batch: _end(folder, batch, topic) for batch in batches[-3:]}
    known = {batch: end for batch, end in ends.items() if end is not None}
    last = _finished(batches, _batches(folder, "commits"))
    settled = [end for batch, end in known.items() if batch <= last]
    return CheckpointSurvey(settled[-1] if settled else {}, known[max(known)] if known else {})


def _end(folder: Folder, batch: int, topic: str) -> Positions | None:
    try:
        return _read_range(folder, batch, topic)
    except Damaged:
        return None


def read_note(folder: Folder) -> Note | None:
    """What was noted; None where nothing was. Raises Damaged."""
    if not folder.exists(_NOTE):
        return None
    path = f"{folder}/{_NOTE}"
    found = _json(path, _text(folder, _NOTE))
    try:
        start = found["start"]
        parts = None if start is None else {int(part): int(at) for part, at in start.items()}
        topic, topic_id = str(found["topic"]), str(found["topic_id"])
        return Note(topic, topic_id, bool(found["merged"]), parts, int(found.get("at_ms", 0)))
    except (KeyError, AttributeError, TypeError, ValueError):
        raise Damaged(f"{path} does not hold what kworker notes") from None


def write_note(folder: Folder, note: Note) -> None:
    """As a whole or not at all. OSError when the disk is full."""
    folder.write(_NOTE, json.dumps(asdict(note)).encode())


def draw_up(folder: Folder, note: Note) -> None:
    """Makes a new checkpoint beside the one that is there. OSError when the disk is full."""
    write_note(_draft(folder), note)


def put_in_place(folder: Folder, now_ms: int) -> Folder | None:
    """Puts a checkpoint aside and the one that was drawn up in its place; where the old one is now.

    In an object store the old one moves file by file, and half of it could look like an older
    one. So the draft is marked before the first file moves and until the new note is in place:
    a kill in between leaves the mark, on which no query starts.
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


def half_reset(folder: Folder) -> bool:
    """Whether a reset was cut off while the checkpoint moved, or when there was none."""
    draft = _draft(folder)
    return draft.exists() and (draft.exists(_MOVING) or not folder.exists())


def in_force(folder: Folder) -> Folder:
    """The folder that tells how far the table is: after a reset that was cut off, its draft."""
    return _draft(folder) if half_reset(folder) else folder


def _draft(folder: Folder) -> Folder:
    return folder.beside(f".{folder.name}.new")


def _stamp(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"
