"""The mark that a job leaves in each commit of a table, and the decisions based on it. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from kworker.spark.checkpoints.checkpoint import Checkpoint, Positions

_KEY = "kworker"
_EPOCH_BITS = 32
CLAIM = -1
# A file in the folder of a table's first write: it distinguishes leftovers of an interrupted
# first write from files of others. No table is made among those: its vacuum would remove them.
FIRST_WRITE_MARKER = "_kworker_makes_this"


@dataclass(frozen=True, slots=True)
class CommitMark:
    """The entry that kworker makes in the metadata of each of its commits to a table.

    It names the streaming query, the batch, and the positions below which all results are in the
    table. `epoch` is a number that grows when a query takes over the table. In this class, a claim
    is the entry of an empty commit, by which a query takes over the table; its batch is CLAIM.
    """

    writer: str  # service and table: two services may write to one table
    epoch: int
    query: str  # "" where there is none yet
    batch: int
    topic_id: str
    positions: Positions
    at_ms: int

    @classmethod
    def claim(cls, writer: str, epoch: int, query: str, at_ms: int) -> "CommitMark":
        return cls(writer, epoch, query, CLAIM, "", {}, at_ms)

    @property
    def is_claim(self) -> bool:
        return self.batch == CLAIM

    @property
    def version(self) -> int:
        """A number that grows with each of kworker's commits to a table.

        Its upper bits are `epoch`, a number that grows when a query takes over the table. Its lower
        32 bits are the batch's number plus 1.
        """
        return (self.epoch << _EPOCH_BITS) + self.batch + 1

    def text(self) -> str:
        positions = {str(part): at for part, at in self.positions.items()}
        fields = {
            "writer": self.writer,
            "epoch": self.epoch,
            "query": self.query,
            "batch": self.batch,
            "topic": self.topic_id,
            "positions": positions,
            "at_ms": self.at_ms,
        }
        return json.dumps({_KEY: fields})

    @classmethod
    def parse(cls, text: str | None, writer: str) -> "CommitMark | None":
        """Reads kworker's entry from `text`, the metadata of a commit.

        Returns None if there is no entry, or if the entry is not from `writer`, which names a
        service and a table.
        """
        try:
            fields = json.loads(text or "")[_KEY]
            if fields["writer"] != writer:
                return None
            positions = {int(part): int(at) for part, at in fields["positions"].items()}
            return cls(
                writer,
                int(fields["epoch"]),
                str(fields["query"]),
                int(fields["batch"]),
                str(fields["topic"]),
                positions,
                int(fields["at_ms"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def epoch_of(version: int) -> int:
    """Returns `CommitMark.epoch`, a number that grows when a query takes over a table.

    `version` is the `CommitMark.version` of kworker's last commit to the table; the epoch is in its
    upper bits. For -1, which means that kworker has not committed to the table, returns 0.
    """
    return max(0, version) >> _EPOCH_BITS


class BatchStep(Enum):
    """The decision on a batch: write it, leave it out, or stop the query."""

    WRITE = auto()
    LEAVE = auto()  # it is in the table
    STOP = auto()  # another job has continued from another position


def step(
    last_mark: CommitMark | None, query: str, batch: int, begin: Positions | None
) -> BatchStep:
    """Decides whether to write a batch, to leave it out, or to stop the query.

    Leaves out a batch that is in the table. Stops the query if the batch does not begin where the
    table ends, since another job has then written to the table. `last_mark` is the entry that
    kworker made in the metadata of the last batch's commit. `begin` has the positions at which the
    batch begins; None for a query's first batch, since its checkpoint does not have them.
    """
    if last_mark is not None and (last_mark.query, last_mark.batch) == (query, batch):
        return BatchStep.LEAVE
    if last_mark is None or begin is None or same_positions(last_mark.positions, begin):
        return BatchStep.WRITE
    return BatchStep.STOP


def continues(last_mark: CommitMark, found: Checkpoint | None, start: Positions | None) -> bool:
    """True if a query continues where its table ends, so that no result is lost or repeated.

    `found` is the query's checkpoint, None for a new query. `start` has the positions at which the
    query's first batch begins; None is the beginning of the topic. The result is also True if
    the table already has the batch that the checkpoint plans.
    """
    if found is None:
        return same_positions(last_mark.positions, start or {})
    if (last_mark.query, last_mark.batch) == (found.query, found.planned):
        return same_positions(last_mark.positions, found.reached)
    if found.complete:
        return same_positions(last_mark.positions, found.reached)
    return same_positions(last_mark.positions, found.begun if found.planned else start or {})


def same_positions(one: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """True if the positions are equal. A partition that one of them lacks counts as 0."""
    return all(one.get(part, 0) == other.get(part, 0) for part in {*one, *other})
