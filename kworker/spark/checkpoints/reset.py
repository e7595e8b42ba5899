"""The consequences of a checkpoint's reset for the rows of its table. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kworker.config.model import TableSettings
from kworker.core.positions import GroupPosition, Move
from kworker.spark.checkpoints.checkpoint import CheckpointSurvey, Positions


def from_committed(rows: Sequence[GroupPosition], wanted: Mapping[int, int]) -> list[Move]:
    """Plans the position of each partition in the new checkpoint of a table.

    This is the position in `wanted`, which the user gave. For a partition that `wanted` lacks, it
    is the position that the table had reached, `committed` in `rows`; 0 if that is not known.
    """
    return [Move(row, wanted.get(row.partition, row.committed or 0)) for row in rows]


@dataclass(frozen=True, slots=True)
class Reset:
    """The reset of one table's checkpoint: planned, but not done yet.

    `moves` has each partition's new position. `left` has the positions that could be read from the
    old checkpoint, which may be damaged. `fresh` is True if the table certainly has no rows, so
    that no row can be in it twice.
    """

    table: TableSettings
    moves: Sequence[Move]
    left: CheckpointSurvey
    fresh: bool

    @property
    def start(self) -> Positions:
        return {move.current.partition: move.position for move in self.moves}

    @property
    def missing(self) -> Positions:
        """The requested positions that lie outside of what their partitions hold, by partition.

        Empty if the table's last position is not known in any partition.
        """
        clamped = (move for move in self.moves if self._is_known and move.clamped)
        return {move.current.partition: move.wanted for move in clamped}

    @property
    def _is_known(self) -> bool:
        return any(move.current.committed is not None for move in self.moves)

    @property
    def again(self) -> int | None:
        """The highest possible number of results that are read a second time; None if unknown."""
        if self.fresh:
            return 0
        if not self._is_known:
            return None
        return sum(max(0, self._reached(move) - move.position) for move in self.moves)

    @property
    def skipped(self) -> int:
        """The highest possible number of results that the table will lack after the reset.

        The new positions are after these results, so the query will not read them.
        """
        return sum(max(0, move.position - self._kept(move)) for move in self.moves)

    def _kept(self, move: Move) -> int:
        """Returns the position up to which the table has, and keeps, the partition's results.

        Normally this is `move.current.committed`, the position that the table had reached. It is 0
        if the table has no rows, or if each batch replaces all rows. If no position was committed,
        it is the new position in `move`: then no result of the partition counts as skipped.
        """
        if self.fresh or self.table.mode == "complete":
            return 0
        known = move.current.committed
        return move.position if known is None else known

    def _reached(self, move: Move) -> int:
        row = move.current
        return max(self.left.reached.get(row.partition, 0), row.committed or 0)

    @property
    def trusted(self) -> int:
        """The highest possible number of results that are taken to be in the table without proof.

        The query will not read these results, since they are before the positions that the table's
        consumer group has committed. But the old checkpoint does not prove that they are in the
        table, and a person may have moved the group's positions.
        """
        return sum(max(0, (move.current.committed or 0) - at) for move, at in self._proven())

    def _proven(self) -> Iterator[tuple[Move, int]]:
        """Yields partitions, each with a position before which the table has all results.

        The old checkpoint proves this. Each partition is yielded as its `Move`, which also has the
        partition's new position. Only yields partitions that are moved to their committed position,
        and none if the table has no rows.
        """
        for move in self.moves:
            at = self.left.settled.get(move.current.partition)
            if at is not None and move.wanted == move.current.committed and not self.fresh:
                yield move, at

    def consequences(self) -> Iterator[str]:
        """Tells a person what the reset does to the table's rows, one line for each effect."""
        if self.skipped:
            yield f"up to {self.skipped:,} results before these positions will not be in the table"
        if self.trusted:
            proven = ",".join(f"{move.current.partition}:{at}" for move, at in self._proven())
            yield (
                f"up to {self.trusted:,} results are taken to be in the table because its group"
                f" says so; its checkpoint does not: --from {proven} reads them"
            )
        if self.again is None:
            yield f"it is not known how far the table had come: what comes again, {self._fate()}"
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
