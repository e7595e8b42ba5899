"""A query's checkpoint as files: how far it says the table is, and what of it is damaged."""

import json
import re
import zlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kworker.errors import KworkerError

Positions = dict[int, int]
"""By partition of the results topic: everything below it was read."""

_NOTE = "kworker.json"
_VERSION = re.compile(r"v\d+")
_FOLDERS = ("offsets", "commits", "sources", "state")


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

    @property
    def complete(self) -> bool:
        """Whether the table holds all that was planned."""
        return self.finished is not None and self.finished >= self.planned


@dataclass(frozen=True, slots=True)
class Note:
    """What kworker adds to a checkpoint: its topic, how it is written, where a reset began it."""

    topic: str
    topic_id: str
    merged: bool
    start: Positions | None = None


def read(folder: Path, topic: str) -> Checkpoint | None:
    """What Spark will go by; None for a query that begins. Raises Damaged, naming the file."""
    if not (folder / "metadata").exists() and not any(map(_filled, _under(folder))):
        return None
    _check_identity(folder)
    offsets, commits = _batches(folder / "offsets"), _batches(folder / "commits")
    if commits and (not offsets or commits[-1] > offsets[-1]):
        missing = folder / "offsets" / str(commits[-1])
        raise Damaged(f"{missing} is missing, though that batch was written")
    if not offsets:
        return None
    if commits:
        _read_commit(folder / "commits" / str(commits[-1]))
    planned = offsets[-1]
    for batch in range(max(0, planned - 1), planned + 1):  # Spark starts from these two
        reached = _read_range(folder / "offsets" / str(batch), topic)
    finished = _finished(offsets, commits)
    return Checkpoint(planned, None if finished < 0 else finished, reached)


def _under(folder: Path) -> list[Path]:
    return [folder / name for name in _FOLDERS]


def _filled(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _batches(folder: Path) -> list[int]:
    """The numbers of the files there, rising; Spark's drafts and checksums have other names."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _finished(planned: list[int], noted: list[int]) -> int:
    """The last batch that is in the table for certain, or -1.

    A batch is planned when the one before it is there, whatever became of the note of it.
    """
    return max([-1, *noted[-1:], *(batch - 1 for batch in planned[-1:])])


def _check_identity(folder: Path) -> None:
    """Without its file a query gets a new id, and a table no longer knows its batches."""
    path = folder / "metadata"
    found = _json(path, _text(path))
    if not isinstance(found.get("id"), str):
        raise Damaged(f"{path} does not hold the query's id")


def _read_commit(path: Path) -> None:
    version, *lines = _text(path).splitlines()
    if not _VERSION.fullmatch(version) or len(lines) != 1:
        raise Damaged(f"{path} is truncated")
    _json(path, lines[0])


def _read_range(path: Path, topic: str) -> Positions:
    """Where a batch ends: a line of version, one of settings, and one for each source."""
    version, *lines = _text(path).splitlines()
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


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from None
    if not content:
        raise Damaged(f"{path} is empty")
    if not _matches(content, path.with_name(f".{path.name}.crc")):
        raise Damaged(f"{path} does not match its checksum")
    return content.decode(errors="replace")


def _matches(content: bytes, sums: Path) -> bool:
    """Whether Spark's own reader would take it; a kill may have left it without checksums."""
    try:
        told = sums.read_bytes()
    except OSError:
        return True
    each = int.from_bytes(told[4:8], "big")
    if not each:
        return True
    parts = (content[at : at + each] for at in range(0, len(content), each))
    return told[8:] == b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)


def damaged_state(folder: Path) -> Path | None:
    """A file of a query's state that is not what Spark wrote, if one can be told.

    Reads all of it, so this is asked when Spark has failed, which may not say on which file.
    """
    for path in sorted((folder / "state").rglob("[0-9]*.*")):
        try:
            _text(path)
        except Damaged:
            return path
    return None


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Damaged(f"{path} is not readable: truncated, or written by something else")
    return found


@dataclass(frozen=True, slots=True)
class Survey:
    """What can still be read of a checkpoint that may be damaged."""

    settled: Positions  # the end of the last finished batch, or of one before it
    reached: Positions  # the end of the last batch that may be in the table


def survey(folder: Path, topic: str) -> Survey:
    """For a reset: the best of what is left."""
    batches = _batches(folder / "offsets")
    ends = {batch: _end(folder / "offsets" / str(batch), topic) for batch in batches[-3:]}
    known = {batch: end for batch, end in ends.items() if end is not None}
    last = _finished(batches, _batches(folder / "commits"))
    settled = [end for batch, end in known.items() if batch <= last]
    return Survey(settled[-1] if settled else {}, known[max(known)] if known else {})


def _end(path: Path, topic: str) -> Positions | None:
    try:
        return _read_range(path, topic)
    except Damaged:
        return None


def read_note(folder: Path) -> Note | None:
    """What was noted; None where nothing was. Raises Damaged."""
    path = folder / _NOTE
    if not path.exists():
        return None
    found = _json(path, _text(path))
    try:
        start = found["start"]
        parts = None if start is None else {int(part): int(at) for part, at in start.items()}
        return Note(str(found["topic"]), str(found["topic_id"]), bool(found["merged"]), parts)
    except (KeyError, AttributeError, TypeError, ValueError):
        raise Damaged(f"{path} does not hold what kworker notes") from None


def write_note(folder: Path, note: Note) -> None:
    """As a whole or not at all. OSError when the disk is full."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{_NOTE}.part"
    draft.write_text(json.dumps(asdict(note)))
    draft.replace(folder / _NOTE)


def draw_up(folder: Path, note: Note) -> None:
    """Makes a new checkpoint beside the one that is there. OSError when the disk is full."""
    write_note(_draft(folder), note)


def put_in_place(folder: Path, now_ms: int) -> Path | None:
    """Puts a checkpoint aside and the new one in its place; where the old one is now.

    A kill in between leaves the draft alone: `half_reset`, on which no query starts.
    """
    aside = folder.with_name(f"{folder.name}.{_stamp(now_ms)}") if folder.exists() else None
    if aside is not None:
        folder.rename(aside)
    _draft(folder).rename(folder)
    return aside


def half_reset(folder: Path) -> bool:
    """Whether a reset was cut off when there was no checkpoint."""
    return not folder.exists() and _draft(folder).exists()


def _draft(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.new")


def _stamp(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"


def last_file_batch(table: Path) -> int | None:
    """The last batch that Spark's file sink has in its log, which it never takes again."""
    folder = table / "_spark_metadata"
    if not folder.is_dir():
        return None
    numbers = (path.name.removesuffix(".compact") for path in folder.iterdir())
    return max((int(number) for number in numbers if number.isdigit()), default=None)
