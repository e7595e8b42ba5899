"""The check before a query starts: its checkpoint against its topic, its group and its table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import urlsplit

import structlog

from kworker.clock import now_ms
from kworker.config.model import TableSettings
from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.checkpoints.checkpoint import Checkpoint, Positions, read_checkpoint
from kworker.spark.checkpoints.commit_marks import CommitMark, continues
from kworker.spark.checkpoints.folders import Folder
from kworker.spark.checkpoints.note import (
    Note,
    apply_draft,
    current_folder,
    is_half_reset,
    read_note,
    write_draft,
    write_note,
)

_LOG = structlog.get_logger()


class ResultsTopic(NamedTuple):
    """The results topic. Its id changes when the topic is deleted and created again."""

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class QueryStart:
    """A checkpoint to continue, or the first positions of a new query.

    With neither, the query starts at the beginning of the topic. `last_mark` is the entry that
    kworker made in the metadata of the last batch's commit.
    """

    checkpoint: Checkpoint | None = None
    start: Positions | None = None
    last_mark: CommitMark | None = None  # in the table

    @property
    def wrote(self) -> bool:
        """True if batches were written before, so that the table must exist."""
        finished = self.checkpoint is not None and self.checkpoint.finished is not None
        return finished or self.last_mark is not None


class Guard:
    """Checks before each start of a table's query that its checkpoint fits the table."""

    def __init__(self, table: TableSettings, checkpoint: Folder) -> None:
        self._table = table
        self._folder = checkpoint

    def admit(
        self,
        topic: ResultsTopic,
        committed: Mapping[int, int],
        last_mark: CommitMark | None = None,
        keeps_state: Callable[[], bool] = lambda: False,
    ) -> QueryStart:
        """Decides where the query starts. Raises Damaged if the query must not start.

        `committed` has the consumer group's positions. `last_mark` is the entry that kworker made
        in the metadata of the last batch's commit. The query continues from the positions in this
        entry; if a person has reset the checkpoint since then, from the positions of the reset. A
        checkpoint that does not end there is renamed, and a new checkpoint is begun. But if the
        query keeps state between batches, Damaged is raised instead, since a new checkpoint would
        lack the state. Errors of the file system are raised as they are.
        """
        folder = self._folder
        if is_half_reset(folder):
            draft = read_note(current_folder(folder))
            # A person's reset is newer than the table; this one is a job's own, interrupted.
            if last_mark is not None and draft is not None and draft.at_ms <= last_mark.at_ms:
                return self._begin_anew(topic, last_mark, keeps_state)
            raise Damaged(_half_reset(folder))
        note = read_note(folder)
        if note is not None and (note.topic, note.topic_id) != topic:
            if last_mark is not None and last_mark.topic_id == topic.id:
                return self._begin_anew(topic, last_mark, keeps_state)
            raise Damaged(_another_topic(folder, note, topic), "earliest")
        found = read_checkpoint(folder, topic.name)
        begin = None if note is None else note.start
        if found is not None and not found.planned and begin:
            found = replace(found, begun=begin)
        start = begin if found is None else None
        reset = None if last_mark is None else _reset_since(last_mark, note, found)
        if last_mark is not None and (reset is None or reset.missing):
            if last_mark.topic_id != topic.id:
                again = f"{topic.name} was deleted and made again since the table was written"
                raise Damaged(again, "earliest")
            end = _end_of_table(last_mark, reset)
            if not continues(end, found, begin):
                return self._begin_anew(topic, end, keeps_state, reset)
        elif start is None:
            _check_group(folder, found, committed)
        merged = is_merged(self._table)
        if note is None or note.merged != merged:
            if last_mark is None:
                _check_change(folder, found, note, merged)
            write_note(folder, replace(note or Note(topic.name, topic.id, merged), merged=merged))
        return QueryStart(found, start, last_mark)

    def _begin_anew(
        self,
        topic: ResultsTopic,
        last_mark: CommitMark,
        keeps_state: Callable[[], bool],
        reset: Note | None = None,
    ) -> QueryStart:
        folder = self._folder
        if keeps_state():
            raise Damaged(
                f"another job has written to the table, so the checkpoint {folder} no longer"
                " fits it: only that job's checkpoint has the present state of the table's"
                " aggregations. A reset of this one computes the state again from all results",
                "earliest",
            )
        note = Note(topic.name, topic.id, is_merged(self._table), last_mark.positions)
        if reset is not None:  # until the first batch is written, it stays a person's decision
            note = replace(note, at_ms=reset.at_ms, missing=reset.missing)
        write_draft(folder, note)
        aside = apply_draft(folder, now_ms())
        _LOG.warning(
            "another job has written to the table; a new checkpoint begins where that job ended",
            table=self._table.name,
            positions=last_mark.positions,
            old_checkpoint=str(aside or "none"),
        )
        return QueryStart(None, last_mark.positions, last_mark)


def _reset_since(last_mark: CommitMark, note: Note | None, found: Checkpoint | None) -> Note | None:
    """Returns `note` if a person's reset wrote it after the table's last commit, else None."""
    if found is not None and (found.planned or found.complete):
        return None
    if note is None or note.start is None or note.at_ms <= last_mark.at_ms:
        return None
    return note


def _end_of_table(last_mark: CommitMark, reset: Note | None) -> CommitMark:
    """Returns `last_mark`, with the positions at which a query must continue.

    `reset` is the note of a person's reset after the commit with this mark; None without a reset.
    `reset.missing` has the partitions in which the topic did not hold the offset at which the table
    ended. In these, the query continues at the nearest offset that the topic held.
    """
    if reset is None or reset.start is None:
        return last_mark
    ends = dict(last_mark.positions)
    for part, nearest in reset.start.items():
        lost = reset.missing.get(part, nearest)
        if lost < nearest:
            ends[part] = max(ends.get(part, nearest), nearest)
        elif lost > nearest:
            ends[part] = min(ends.get(part, nearest), nearest)
    return replace(last_mark, positions=ends)


def next_step(table: TableSettings, begin: str) -> str:
    """Tells a person the command that lets a refused query start again."""
    return f"stop the job, then kworker spark reset --table {table.name} --from {begin}"


def _half_reset(folder: Folder) -> str:
    return (
        f"the checkpoint {folder} is missing or incomplete, since its reset was interrupted;"
        " reset it again"
    )


def _another_topic(folder: Folder, note: Note, topic: ResultsTopic) -> str:
    if note.topic != topic.name:
        return f"{folder} was begun for the topic {note.topic}, not for {topic.name}"
    return f"{topic.name} was deleted and made again since {folder} was written"


def _check_change(
    folder: Folder, found: Checkpoint | None, note: Note | None, merged: bool
) -> None:
    """Raises Damaged if `dedupe` or `mode` was changed while a batch was unfinished.

    Only raises it if batches were merged into the table by keys before, and are not any more.
    Called for a table whose commits do not name their batches, so that it is not known if the
    unfinished batch is in the table.
    """
    if note is None or merged or found is None or found.complete:
        return
    raise Damaged(
        f"{folder} has a batch that was being merged when the job ended: set dedupe or mode back,"
        " let the job finish this batch, then change the setting again",
        begin="",
    )


def is_merged(table: TableSettings) -> bool:
    """True if batches are merged into the table by keys, not appended."""
    return table.mode == "update" or (table.dedupe and table.mode == "append")


# File systems where only one of two concurrent commits can succeed.
_EXCLUSIVE = ("hdfs", "abfs", "abfss", "gs")


def takes_one_writer(table: TableSettings) -> bool:
    """True if nothing, not even a compaction, may write to the table beside the job.

    That holds for tables into which batches are merged, since a merge and a compaction conflict. It
    also holds for tables at a path in a local folder, in S3 or the like: there, two commits at the
    same time may choose the same version number, and then one of them is lost.
    """
    by_path = bool(table.path) and urlsplit(table.path).scheme not in _EXCLUSIVE
    return by_path or is_merged(table)


def _check_group(folder: Folder, found: Checkpoint | None, committed: Mapping[int, int]) -> None:
    """Raises Damaged when the consumer group's positions are ahead of the checkpoint.

    The group's positions are committed only after the checkpoint is written. So the checkpoint is
    an old one, or somebody has changed the positions.
    """
    reached = {} if found is None else found.reached
    ahead = {part: at for part, at in committed.items() if at > reached.get(part, 0)}
    if not ahead:
        return
    if found is None:
        raise Damaged(
            f"the checkpoint {folder} is gone, though its query has written to the table; a reset"
            " makes a new checkpoint"
        )
    part, at = min(ahead.items())
    raise Damaged(
        f"the checkpoint {folder} is older than the table, or the positions of the table's consumer"
        f" group were changed: in partition {part} the checkpoint ends at offset"
        f" {reached.get(part, 0):,}, but the group's position is {at:,}; reset the checkpoint"
    )
