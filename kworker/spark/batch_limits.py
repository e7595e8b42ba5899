"""The size of a table's batches: a number of results, or fewer where they are large."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kworker.config.model import SparkSettings, TableSettings

Range = tuple[int, int]
Sample = Callable[[frozenset[tuple[int, Range]]], float | None]
"""Bytes per record in the partition where they are largest, sampled in ranges of the topic."""

RECENT = 1_000  # records at a partition's end, sampled where none wait
_PART = 4
_GROWTH_MOST = 4
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The most that one batch takes, in records and in bytes of their values."""

    records: int
    bytes: int

    def of(self, record_bytes: float | None) -> int:
        """The number of records of this size that a batch takes; at least one."""
        if not record_bytes:
            return self.records
        return max(1, min(self.records, int(self.bytes / record_bytes)))


def limit_of(spark: SparkSettings, table: TableSettings) -> BatchLimit:
    """The table's own limit, or that of all tables."""
    return BatchLimit(
        table.batch_records or spark.batch_records, table.batch_bytes or spark.batch_bytes
    )


def pending_ranges(positions: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, Range]:
    """The offsets that a query reads next, by partition; where none wait, the last ones."""
    return {
        partition: (max(0, min(positions.get(partition, 0), end - RECENT)), end)
        for partition, end in ends.items()
    }


class BatchLimits:
    """The number of results that a batch of each table takes. Owned by the job's main thread.

    It follows a sample of the waiting results, or the last batches, and never exceeds a limit
    that was lowered after the memory had run out.
    """

    def __init__(self, spark: SparkSettings, state_dir: Path, sample: Sample) -> None:
        self._spark = spark
        self._sample = sample
        self._samples: dict[frozenset[tuple[int, Range]], float] = {}
        self._lowered = LoweredLimits(state_dir)
        self._resized: dict[str, int] = {}  # records of a batch, by table, after its last ones

    def records_max(self, table: TableSettings, waiting: Mapping[int, Range]) -> int:
        """The most records for a batch; may sample the waiting ranges, which takes a second."""
        most = self._resized.get(table.name)
        if most is None:
            most = limit_of(self._spark, table).of(self._size(frozenset(waiting.items())))
        return self._at_most_lowered(table, most)

    def _size(self, waiting: frozenset[tuple[int, Range]]) -> float | None:
        # A log's records do not change, and most tables are at the same positions.
        if waiting not in self._samples and (found := self._sample(waiting)) is not None:
            self._samples[waiting] = found
        return self._samples.get(waiting)

    def resize(self, table: TableSettings, most: int, records: int, size: int) -> bool:
        """Sets another number of records for the next batches, if the last one shows it is better.

        True if it does. The last batch had `records` of at most `most`, with `size` bytes.
        """
        bound = limit_of(self._spark, table)
        if not records or (records < _FULL * most and size <= 2 * bound.bytes):
            return False
        wanted = self._at_most_lowered(table, min(bound.of(size / records), _GROWTH_MOST * most))
        if most < 2 * wanted and wanted < 2 * most:
            return False
        self._resized[table.name] = wanted
        return True

    def lower(self, batches: Mapping[str, int]) -> str:
        """Lowers the limits of these tables after memory ran out; returns a line for people.

        `batches` has the records that a batch of each took.
        """
        lower = {name: max(1, most // _PART) for name, most in batches.items()}
        try:
            self._lowered.save(lower)
        except OSError as error:
            return f"the lower batch sizes cannot be saved ({error.strerror})"
        text = ", ".join(f"{name} {most:,}" for name, most in lower.items())
        return f"batches take fewer results from now on ({text})"

    def forget(self) -> None:
        """Removes the lowered limits, after a long time without running out of memory."""
        self._lowered.forget()

    def _at_most_lowered(self, table: TableSettings, most: int) -> int:
        return min(most, self._lowered.of(table.name) or most)


class LoweredLimits:
    """Limits of tables whose batches were too large for the JVM's memory, for the next process.

    `<state_dir>/spark/lowered.json`. Owned by the job's main thread.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "spark" / "lowered.json"

    def of(self, table: str) -> int | None:
        """The lowered limit of a table, in records; None for one that has none."""
        return self._read().get(table)

    def save(self, batches: Mapping[str, int]) -> None:
        """Saves lowered limits, in records by table. OSError when the disk is full."""
        draft = self._path.with_name("lowered.part")
        draft.write_text(json.dumps({**self._read(), **batches}))
        draft.replace(self._path)

    def forget(self) -> None:
        """Removes the limits of all tables."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_text())
            return {str(name): int(each) for name, each in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
