"""How much one batch of a table takes: so many results, or fewer where they are large."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kworker.config.model import SparkSettings, TableSettings

Range = tuple[int, int]
Sample = Callable[[frozenset[tuple[int, Range]]], float | None]
"""Bytes of a record where they are largest in these ranges, by partition, of the results topic."""

RECENT = 1_000  # records at a partition's end, where nothing waits
_PART = 4
_GROWTH_MOST = 4
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """What one batch may take; both are upper bounds."""

    records: int
    bytes: int

    def of(self, record_bytes: float | None) -> int:
        """So many records; at least one."""
        if not record_bytes:
            return self.records
        return max(1, min(self.records, int(self.bytes / record_bytes)))


def limit_of(spark: SparkSettings, table: TableSettings) -> BatchLimit:
    """A table's own, or that of all."""
    return BatchLimit(
        table.batch_records or spark.batch_records, table.batch_bytes or spark.batch_bytes
    )


def pending_ranges(positions: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, Range]:
    """What a query reads next of each partition; where nothing waits, what came last."""
    return {
        partition: (max(0, min(positions.get(partition, 0), end - RECENT)), end)
        for partition, end in ends.items()
    }


class BatchLimits:
    """How many results a batch of each table may take. Owned by the job's main thread.

    By a sample of what waits, or by what the last batches had; never more than what was lowered
    after the memory had run out.
    """

    def __init__(self, spark: SparkSettings, state_dir: Path, sample: Sample) -> None:
        self._spark = spark
        self._sample = sample
        self._samples: dict[frozenset[tuple[int, Range]], float] = {}
        self._lowered = LoweredLimits(state_dir)
        self._seen: dict[str, int] = {}  # by table, what its last batches made of it

    def records_max(self, table: TableSettings, waiting: Mapping[int, Range]) -> int:
        """Of those that wait in these ranges; may read a few of them, which takes a second."""
        most = self._seen.get(table.name)
        if most is None:
            most = limit_of(self._spark, table).of(self._size(frozenset(waiting.items())))
        return self._capped(table, most)

    def _size(self, waiting: frozenset[tuple[int, Range]]) -> float | None:
        # What is in a log stays the same, and tables mostly stand at the same positions.
        if waiting not in self._samples and (found := self._sample(waiting)) is not None:
            self._samples[waiting] = found
        return self._samples.get(waiting)

    def resize(self, table: TableSettings, most: int, records: int, size: int) -> bool:
        """Whether a batch shows that another bound is better by far: then that is the next.

        It had so many records, of at most `most`, and so many bytes.
        """
        bound = limit_of(self._spark, table)
        if not records or (records < _FULL * most and size <= 2 * bound.bytes):
            return False
        wanted = self._capped(table, min(bound.of(size / records), _GROWTH_MOST * most))
        if most < 2 * wanted and wanted < 2 * most:
            return False
        self._seen[table.name] = wanted
        return True

    def lower(self, batches: Mapping[str, int]) -> str:
        """These took so many when the memory ran out; what is done about it, for people."""
        lower = {name: max(1, most // _PART) for name, most in batches.items()}
        try:
            self._lowered.save(lower)
        except OSError as error:
            return f"the sizes of batches cannot be noted ({error.strerror})"
        told = ", ".join(f"{name} {most:,}" for name, most in lower.items())
        return f"batches take fewer results from now on ({told})"

    def forget(self) -> None:
        """It went well for long."""
        self._lowered.forget()

    def _capped(self, table: TableSettings, most: int) -> int:
        return min(most, self._lowered.of(table.name) or most)


class LoweredLimits:
    """Tables whose batches were too large for the JVM's memory, noted for the next process.

    `<state_dir>/spark/lowered.json`. Owned by the job's main thread.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "spark" / "lowered.json"

    def of(self, table: str) -> int | None:
        """How many records a batch may take; None for one that was never too large."""
        return self._read().get(table)

    def save(self, batches: Mapping[str, int]) -> None:
        """So many may be taken from now on. OSError when the disk is full."""
        draft = self._path.with_name("lowered.part")
        draft.write_text(json.dumps({**self._read(), **batches}))
        draft.replace(self._path)

    def forget(self) -> None:
        """All of it."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_text())
            return {str(name): int(each) for name, each in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
