"""Whether a query may start: its checkpoint held against its topic, its group and its table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from kworker.config import Table
from kworker.spark.checkpoint import (
    Checkpoint,
    Damaged,
    Note,
    Positions,
    half_reset,
    last_file_batch,
    read,
    read_note,
    write_note,
)
from kworker.spark.lease import local_folder


class Topic(NamedTuple):
    """The results as they are now; one that was deleted and made again has another id."""

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a query starts from: its last batch, or where a reset had it begin, or neither."""

    checkpoint: Checkpoint | None = None
    start: Positions | None = None

    @property
    def wrote(self) -> bool:
        """Whether a batch is in the table for certain."""
        return self.checkpoint is not None and self.checkpoint.finished is not None


class Guard:
    """Looks at a table's checkpoint before each start of its query.

    Only a local folder can be looked at: for others, Spark's own errors stand.
    """

    def __init__(self, table: Table, checkpoint: str) -> None:
        self._table = table
        self._folder = local_folder(checkpoint)

    def admit(self, topic: Topic, told: Mapping[int, int]) -> Admitted:
        """What to start from, `told` being the group's positions. Raises Damaged."""
        if self._folder is None:
            return Admitted()
        return self._examined(self._folder, topic, told)

    def _examined(self, folder: Path, topic: Topic, told: Mapping[int, int]) -> Admitted:
        if half_reset(folder):
            raise Damaged(f"{folder} is gone: a reset of it was cut off")
        note = read_note(folder)
        if note is not None and (note.topic, note.topic_id) != topic:
            raise Damaged(_another_topic(folder, note, topic), "earliest")
        found = read(folder, topic.name)
        start = note.start if note is not None and found is None else None
        if start is None:
            _check_group(folder, found, told)
        if self._table.format == "parquet":
            self._check_files(folder, found)
        merged = is_merged(self._table)
        if note is None or note.merged != merged:
            _check_change(folder, found, note, merged)
            write_note(folder, Note(topic.name, topic.id, merged, start))
        return Admitted(found, start)

    def _check_files(self, folder: Path, found: Checkpoint | None) -> None:
        """The file sink goes by the number of a batch alone, whoever's it is."""
        place = local_folder(self._table.path) if self._table.path else None
        if place is None:
            return
        written = last_file_batch(place)
        planned = -1 if found is None else found.planned
        finished = None if found is None else found.finished
        if written is not None and written > planned:
            raise Damaged(
                f"{place} has Parquet's batches up to {written}, of which {folder} knows nothing:"
                " Spark would skip as many new ones"
            )
        if finished is not None and (written is None or written < finished):
            raise Damaged(f"{place} is not what {folder} wrote: {place}/_spark_metadata lacks it")


def next_step(table: Table, begin: str) -> str:
    """What a person does about a query that must not start."""
    elsewhere = ", give the table another path" if table.format == "parquet" else ""
    return f"stop the job{elsewhere}, then kworker spark reset --table {table.name} --from {begin}"


def _another_topic(folder: Path, note: Note, topic: Topic) -> str:
    if note.topic != topic.name:
        return f"{folder} is of the topic {note.topic}, not {topic.name}"
    return f"{topic.name} was deleted and made again since {folder} was written"


def _check_change(folder: Path, found: Checkpoint | None, note: Note | None, merged: bool) -> None:
    """A merge leaves no number by which a batch that is written again could be known."""
    if note is None or merged or found is None or found.complete:
        return
    raise Damaged(
        f"{folder} has a batch that was being merged when the job ended: set dedupe or mode back,"
        " let the job finish it, then change them",
        begin="",
    )


def is_merged(table: Table) -> bool:
    """Whether batches are merged into what the table holds, by keys."""
    return table.mode == "update" or (table.dedupe and table.mode == "append")


# Where only one of two commits at once can succeed, whoever makes them.
_EXCLUSIVE = ("hdfs", "abfs", "abfss", "gs")


def takes_one_writer(table: Table) -> bool:
    """Whether nothing else may write to it beside the job.

    A merge and a compaction undo each other. And in a local folder, or in S3, a commit is a
    look whether the next number is free, and then a file: of two at once, one is gone.
    """
    by_path = bool(table.path) and urlsplit(table.path).scheme not in _EXCLUSIVE
    return by_path or is_merged(table)


def _check_group(folder: Path, found: Checkpoint | None, told: Mapping[int, int]) -> None:
    """The group is told of a batch when it is written, so a checkpoint is never behind it."""
    reached = {} if found is None else found.reached
    ahead = {part: at for part, at in told.items() if at > reached.get(part, 0)}
    if not ahead:
        return
    if found is None:
        raise Damaged(f"{folder} is gone, though the table was written from it")
    part, at = min(ahead.items())
    raise Damaged(
        f"{folder} is older than the table, or the table's group was moved: the one ends at"
        f" {reached.get(part, 0):,} of partition {part}, the other at {at:,}"
    )
