"""How far a table is, as each commit of its job says; and what is done by that. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from kworker.spark.checkpoints.checkpoint import Checkpoint, Positions

_KEY = "kworker"
_EPOCH_BITS = 32
CLAIM = -1
# Beside a table: by it what a first write has left that was cut off is known from files of others,
# among which no table is made: they would go some day with what the table has outlived.
FIRST_WRITE_MARKER = "_kworker_makes_this"


@dataclass(frozen=True, slots=True)
class CommitMark:
    """What a commit says: it is this batch of a query, and all below these positions is there.

    Or it is a claim, with `CLAIM` for a batch, and says only which query writes from now on. Each
    has an epoch of its own.
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
        """A number that only grows from commit to commit."""
        return (self.epoch << _EPOCH_BITS) + self.batch + 1

    def text(self) -> str:
        positions = {str(part): at for part, at in self.positions.items()}
        told = {
            "writer": self.writer,
            "epoch": self.epoch,
            "query": self.query,
            "batch": self.batch,
            "topic": self.topic_id,
            "positions": positions,
            "at_ms": self.at_ms,
        }
        return json.dumps({_KEY: told})

    @classmethod
    def parse(cls, text: str | None, writer: str) -> "CommitMark | None":
        """None for what another writer has written, and for what is no mark."""
        try:
            told = json.loads(text or "")[_KEY]
            if told["writer"] != writer:
                return None
            positions = {int(part): int(at) for part, at in told["positions"].items()}
            return cls(
                writer,
                int(told["epoch"]),
                str(told["query"]),
                int(told["batch"]),
                str(told["topic"]),
                positions,
                int(told["at_ms"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def epoch_of(version: int) -> int:
    """Of the mark that had this version; 0 for -1, which none had."""
    return max(0, version) >> _EPOCH_BITS


class BatchStep(Enum):
    """What to do about a batch."""

    WRITE = auto()
    LEAVE = auto()  # it is in the table
    STOP = auto()  # another job went on from another place


def step(held: CommitMark | None, query: str, batch: int, begin: Positions | None) -> BatchStep:
    """Of a batch that begins there, by what the table says of itself.

    `begin` is None where nobody knows: for the first batch of a query.
    """
    if held is not None and (held.query, held.batch) == (query, batch):
        return BatchStep.LEAVE
    if held is None or begin is None or same_positions(held.positions, begin):
        return BatchStep.WRITE
    return BatchStep.STOP


def continues(held: CommitMark, found: Checkpoint | None, start: Positions | None) -> bool:
    """Whether a query goes on where its table ends, or finds there what it was writing.

    `start` is where its first batch begins; None for the beginning of the topic.
    """
    if found is None:
        return same_positions(held.positions, start or {})
    if (held.query, held.batch) == (found.query, found.planned):
        return same_positions(held.positions, found.reached)
    if found.complete:
        return same_positions(held.positions, found.reached)
    return same_positions(held.positions, found.begun if found.planned else start or {})


def same_positions(one: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """A partition that was added later is at its beginning."""
    return all(one.get(part, 0) == other.get(part, 0) for part in {*one, *other})
