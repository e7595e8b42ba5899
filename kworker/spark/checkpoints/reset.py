"""The consequences of a checkpoint's reset for the rows of its table. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kworker.config.model import TableSettings
from kworker.core.positions import GroupPosition, Move
from kworker.spark.checkpoints.checkpoint import CheckpointSurvey, Positions


def from_committed(rows: Sequence[GroupPosition], wanted: Mapping[int, int]) -> list[Move]:
    """Plans a move to the wanted position, or else to the committed one, for each partition."""
    return [Move(row, wanted.get(row.partition, row.committed or 0)) for row in rows]


@dataclass(frozen=True, slots=True)
class Reset:
    """The reset of one table's checkpoint, before it is done.

    `moves` has each partition's new position, and `left` the positions that the old checkpoint
    still has. `fresh` is True when the table does not exist yet, so that no row can be in it twice.
    """

    table: TableSettings
    moves: Sequence[Move]
    left: CheckpointSurvey
    fresh: bool

    @property
    def start(self) -> Positions:
        return {move.current.partition: move.position for move in self.moves}

    @property
    def again(self) -> int | None:
        """The highest possible number of results that are read a second time; None if unknown."""
        if self.fresh:
            return 0
        if all(move.current.committed is None for move in self.moves):
            return None
        return sum(max(0, self._reached(move) - move.position) for move in self.moves)

    @property
    def skipped(self) -> int:
        """The highest possible number of results that the table will lack after the reset.

        The new positions are after these results, so the query will not read them.
        """
        return sum(max(0, move.position - self._kept(move)) for move in self.moves)

    def _kept(self, move: Move) -> int:
        """The position before which the table has all results of a partition after the reset.

        It is 0 if the table is new, or if each batch replaces all rows of the table. If the
        partition has no committed position, the new position is returned. Then no result counts as
        missing.
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
        """The highest number of results before the committed positions that the table may lack.

        The reset takes these results to be in the table, since the consumer group has committed
        them. But a person may have moved the committed positions, and the old checkpoint does not
        prove that the results are in the table.
        """
        return sum(max(0, (move.current.committed or 0) - at) for move, at in self._proven())

    def _proven(self) -> Iterator[tuple[Move, int]]:
        """Yields a move and a position for each partition that moves to its committed position.

        The old checkpoint proves that all results of the partition before the yielded position are
        in the table.
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
