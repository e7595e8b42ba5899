"""A query's checkpoint as files: the positions in it, and its damaged parts."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from kworker.spark.checkpoints.checked_files import Damaged, parse_object, read_text
from kworker.spark.checkpoints.folders import Folder

Positions = dict[int, int]
"""Offsets by partition of the results topic; everything below them was read."""

_VERSION = re.compile(r"v\d+")
_FOLDERS = ("offsets", "commits", "sources", "state")
_STATE = re.compile(r"\d.*\.")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a query, as Spark's checkpoint records it.

    For each batch Spark saves its range of offsets (the batch is planned), writes the rows, and
    then saves a commit file (the batch is finished).
    """

    planned: int  # the last batch whose range is fixed
    finished: int | None  # the last batch that is certainly in the table
    reached: Positions  # the end of the planned batch
    begun: Positions  # the begin of the planned batch; empty for the first
    query: str  # its id, which marks its batches in the table

    @property
    def complete(self) -> bool:
        """True if the last planned batch is in the table."""
        return self.finished is not None and self.finished >= self.planned


def read_checkpoint(folder: Folder, topic: str) -> Checkpoint | None:
    """Reads the checkpoint; None for a new query. Raises Damaged, which names the bad file."""
    if not folder.exists("metadata") and not any(map(folder.names, _FOLDERS)):
        return None
    query = _identity(folder)
    offsets, commits = _batches(folder, "offsets"), _batches(folder, "commits")
    if commits and (not offsets or commits[-1] > offsets[-1]):
        batch = commits[-1]
        raise Damaged(f"{folder}/offsets/{batch} is missing, although Spark finished this batch")
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
    """The id of the query that this checkpoint belongs to; "" if the id is not readable."""
    try:
        return _identity(folder)
    except Damaged:
        return ""


def range_of(folder: Folder, batch: int, topic: str) -> tuple[Positions | None, Positions]:
    """Returns the positions at which a planned batch begins and ends.

    The begin of the first batch is None, since Spark's checkpoint only has the ends of batches.
    """
    begin = _read_range(folder, batch - 1, topic) if batch else None
    return begin, _read_range(folder, batch, topic)


def _batches(folder: Folder, below: str) -> list[int]:
    """The numbers of the batches with a file in a subfolder of the checkpoint, ascending."""
    return sorted(int(name) for name in folder.names(below) if name.isdigit())


def _finished(planned: list[int], noted: list[int]) -> int:
    """The number of the last batch that is certainly in the table; -1 if there is none.

    `noted` has the batches with a commit file. Spark plans a batch only after it has written the
    previous batch. So the batch before the last planned batch is in the table, even if the commit
    file is missing.
    """
    return max([-1, *noted[-1:], *(batch - 1 for batch in planned[-1:])])


def _identity(folder: Folder) -> str:
    """Reads the query's id from the file `metadata`. Raises Damaged if the file has none.

    Without an id Spark would make a new one, which no commit in the table names.
    """
    path = f"{folder}/metadata"
    found = parse_object(path, read_text(folder, "metadata"))
    if not isinstance(name := found.get("id"), str):
        raise Damaged(f"{path} has no query id of Spark")
    return name


def _read_commit(folder: Folder, batch: int) -> None:
    name = f"commits/{batch}"
    path = f"{folder}/{name}"
    version, *lines = read_text(folder, name).splitlines()
    if not _VERSION.fullmatch(version) or len(lines) != 1:
        raise Damaged(f"{path} is truncated")
    parse_object(path, lines[0])


def _read_range(folder: Folder, batch: int, topic: str) -> Positions:
    """Reads the offsets at which a batch ends from its file in the checkpoint.

    The file has a line with its version, a line with settings, and a line with these offsets.
    """
    name = f"offsets/{batch}"
    path = f"{folder}/{name}"
    version, *lines = read_text(folder, name).splitlines()
    if not _VERSION.fullmatch(version) or len(lines) != 2:
        raise Damaged(f"{path} is truncated")
    parse_object(path, lines[0])
    found = parse_object(path, lines[1])
    if other := [name for name in found if name != topic]:
        raise Damaged(f"{path} holds offsets of the topic {other[0]}, not of {topic}", "earliest")
    try:
        return {int(part): int(offset) for part, offset in found[topic].items()}
    except (KeyError, AttributeError, TypeError, ValueError):
        raise Damaged(f"{path} does not hold offsets of the topic {topic}") from None


def damaged_state(folder: Folder) -> str | None:
    """Returns the path of the first state file that does not match its checksum, or None.

    Reads the whole state. Called after Spark failed, since Spark's error does not always name the
    file.
    """
    for name in folder.walk("state"):
        if not _STATE.match(PurePosixPath(name).name):
            continue
        try:
            read_text(folder, name)
        except Damaged:
            return f"{folder}/{name}"
    return None


def remove_plan(folder: Folder, batch: int) -> None:
    """Removes the plan of a batch, so that Spark plans a new batch in its place.

    The old batch must not be in the table. The state that the old batch has written is removed
    first, since Spark would use this state for the new batch.
    """
    later = (f"{batch + 1}.", f".{batch + 1}.")
    for name in folder.walk("state"):
        if PurePosixPath(name).name.startswith(later):
            folder.delete(name)
    for name in (str(batch), f".{batch}.crc"):
        folder.delete(f"offsets/{name}")


@dataclass(frozen=True, slots=True)
class CheckpointSurvey:
    """The positions that are still readable in a checkpoint, which may be damaged."""

    settled: Positions  # the end of the last finished batch, or of one before it
    reached: Positions  # the end of the last batch that may be in the table


def survey(folder: Folder, topic: str) -> CheckpointSurvey:
    """Reads the ends of the last finished and planned batches; the checkpoint may be damaged."""
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
