"""The size of a table's batches: a number of results, or fewer where they are large."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kworker.config.model import SparkSettings, TableSettings

Range = tuple[int, int]
Sample = Callable[[frozenset[tuple[int, Range]]], float | None]
"""Samples ranges of the topic: the bytes per record, in the partition with the largest ones."""

RECENT = 1_000  # records at a partition's end, sampled where none wait
_PART = 4
_GROWTH_MOST = 4
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The largest size of one batch, in records and in bytes of their values."""

    records: int
    bytes: int

    def of(self, record_bytes: float | None) -> int:
        """The number of records of this size that a batch may hold.

        At least one. If the size is unknown (None), only the limit in records counts.
        """
        if not record_bytes:
            return self.records
        return max(1, min(self.records, int(self.bytes / record_bytes)))


def limit_of(spark: SparkSettings, table: TableSettings) -> BatchLimit:
    """Returns the table's own batch limits; those that it does not set come from `[spark]`."""
    return BatchLimit(
        table.batch_records or spark.batch_records, table.batch_bytes or spark.batch_bytes
    )


def pending_ranges(positions: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, Range]:
    """Returns the offsets to sample for a query's next batch, by partition.

    Each range goes from the query's position to the partition's end. If that is less than RECENT
    offsets, the range is the last RECENT offsets.
    """
    return {
        partition: (max(0, min(positions.get(partition, 0), end - RECENT)), end)
        for partition, end in ends.items()
    }


class BatchLimits:
    """Decides how many results a batch of each table takes. Owned by the job's main thread.

    The number comes from a sample of the results that wait in Kafka, and later from the size of
    finished batches. It never exceeds a limit that was lowered after memory ran out.
    """

    def __init__(self, spark: SparkSettings, state_dir: Path, sample: Sample) -> None:
        self._spark = spark
        self._sample = sample
        self._samples: dict[frozenset[tuple[int, Range]], float] = {}
        self._lowered = LoweredLimits(state_dir)
        self._resized: dict[str, int] = {}  # records of a batch, by table, after its last ones

    def records_max(self, table: TableSettings, waiting: Mapping[int, Range]) -> int:
        """Returns the number of records that a table's next batch may have at most.

        `waiting` has the offsets of waiting records. May read a sample of these records from Kafka,
        which takes a second.
        """
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
        """Sets the number of results that a table's next batches may have, after a finished batch.

        The finished batch had `records` results in `size` bytes, and was allowed `most` results.
        Returns True if the number was changed. A change by less than a factor of two is not made.
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
        """Lowers the batch limits of tables, to a quarter of `batches`, after memory ran out.

        `batches` maps a table's name to an upper bound for the number of records in its last batch.
        Returns a sentence that tells the user the new limits, or why they cannot be saved.
        """
        lower = {name: max(1, most // _PART) for name, most in batches.items()}
        try:
            self._lowered.save(lower)
        except OSError as error:
            return f"the lower batch sizes cannot be saved ({error.strerror})"
        text = ", ".join(f"{name} {most:,}" for name, most in lower.items())
        return f"batches take fewer results from now on ({text})"

    def forget(self) -> None:
        """Removes the lowered limits. Called when memory has not run out for a long time."""
        self._lowered.forget()

    def _at_most_lowered(self, table: TableSettings, most: int) -> int:
        return min(most, self._lowered.of(table.name) or most)


class LoweredLimits:
    """Batch limits that were lowered because the JVM ran out of memory.

    They are kept for the next process in `<state_dir>/spark/lowered.json`. Owned by the job's main
    thread.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "spark" / "lowered.json"

    def of(self, table: str) -> int | None:
        """The lowered limit of a table, in records; None if it was not lowered."""
        return self._read().get(table)

    def save(self, batches: Mapping[str, int]) -> None:
        """Saves the lowered limits of some tables, in records; keeps those of other tables.

        Raises OSError when the disk is full.
        """
        draft = self._path.with_name("lowered.part")
        draft.write_text(json.dumps({**self._read(), **batches}))
        draft.replace(self._path)

    def forget(self) -> None:
        """Removes the lowered limits of all tables."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_text())
            return {str(name): int(each) for name, each in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
