"""What it means for a table's rows that its checkpoint begins anew. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kworker.config.model import TableSettings
from kworker.core.positions import GroupPosition, Move
from kworker.spark.checkpoints.checkpoint import CheckpointSurvey, Positions


def from_committed(rows: Sequence[GroupPosition], wanted: Mapping[int, int]) -> list[Move]:
    """To the wanted positions, and in other partitions to where the table stands."""
    return [Move(row, wanted.get(row.partition, row.committed or 0)) for row in rows]


@dataclass(frozen=True, slots=True)
class Reset:
    """One table's new beginning. `left` is what its checkpoint still tells.

    `fresh` says that the table is not there yet, so that no row can be there twice.
    """

    table: TableSettings
    moves: Sequence[Move]
    left: CheckpointSurvey
    fresh: bool

    @property
    def start(self) -> Positions:
        return {move.standing.partition: move.position for move in self.moves}

    @property
    def again(self) -> int | None:
        """How many results the table may hold already, at most; None if nobody knows."""
        if self.fresh:
            return 0
        if all(move.standing.committed is None for move in self.moves):
            return None
        return sum(max(0, self._reached(move) - move.position) for move in self.moves)

    @property
    def skipped(self) -> int:
        """How many results will not be in the table, at most: there, or expired."""
        return sum(max(0, move.position - self._kept(move)) for move in self.moves)

    def _kept(self, move: Move) -> int:
        """What lies below is in the table; where nobody knows, it is not said to be missing."""
        if self.fresh or self.table.mode == "complete":
            return 0
        known = move.standing.committed
        return move.position if known is None else known

    def _reached(self, move: Move) -> int:
        row = move.standing
        return max(self.left.reached.get(row.partition, 0), row.committed or 0)

    @property
    def trusted(self) -> int:
        """How many results are taken to be there because the group says so, at most.

        The checkpoint, as far as it can be read, does not; a group may be moved by hand.
        """
        return sum(max(0, (move.standing.committed or 0) - at) for move, at in self._proven())

    def _proven(self) -> Iterator[tuple[Move, int]]:
        """The moves to where the group stands, and where the checkpoint did."""
        for move in self.moves:
            at = self.left.settled.get(move.standing.partition)
            if at is not None and move.wanted == move.standing.committed and not self.fresh:
                yield move, at

    def consequences(self) -> Iterator[str]:
        """A line each, for people."""
        if self.skipped:
            yield f"up to {self.skipped:,} results before these positions will not be in the table"
        if self.trusted:
            proven = ",".join(f"{move.standing.partition}:{at}" for move, at in self._proven())
            yield (
                f"up to {self.trusted:,} results are taken to be in the table because its group"
                f" says so; its checkpoint does not: --from {proven} reads them"
            )
        if self.again is None:
            yield f"nobody knows how far the table had come: what comes again, {self._fate()}"
        elif self.again:
            yield f"up to {self.again:,} results come again: what comes again, {self._fate()}"
        if self.table.transform:
            yield "what the transform keeps (sums, groups) is forgotten, and begins with these"

    def _fate(self) -> str:
        if self.table.mode == "complete":
            return "makes the table anew"
        if self.table.mode == "update":
            return f"replaces the rows of the same {', '.join(self.table.merge_on)}"
        if self.table.dedupe:
            return "is not written twice (dedupe)"
        merges = " (dedupe = true prevents it: set it first)"
        return f"is in the table twice{'' if self.table.format == 'parquet' else merges}"
