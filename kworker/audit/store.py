"""Stores on disk, for each source record, the records and rows that show what became of it."""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from kworker.core.audit import LetterState, Trace, TraceKind

_CACHE_KIB = 65_536
_COLUMNS = (
    *("source", "source_partition", "source_offset", "stamp_ms", "kind", "topic", "partition"),
    *("offset", "settled", "result_index", "attempt", "redriven", "due_ms", "letter"),
)
_BATCH = 10_000


class SourceKey(NamedTuple):
    """The identity of a source record; `topic` is an index into the store's names.

    The timestamp is part of it, since a topic that was deleted and created again may have another
    record at the same position.
    """

    topic: int
    partition: int
    offset: int
    timestamp: int


class TraceStore:
    """A temporary database, on disk, of the traces of source records. Used by one thread.

    A trace is a record or a row that shows what became of a source record.
    """

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        # A crash may lose it all.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            self._database.execute(f"PRAGMA {pragma}")
        columns = ", ".join(f"{name} INTEGER" for name in _COLUMNS)
        self._database.execute(f"CREATE TABLE traces ({columns})")
        self._numbers: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.close()

    @property
    def names(self) -> list[str]:
        """The names of topics and tables; traces and keys refer to them by index in this list."""
        return list(self._numbers)

    def number(self, topic: str) -> int:
        """Returns the index of a topic's or table's name; adds the name if it is new."""
        return self._numbers.setdefault(topic, len(self._numbers))

    def add(self, traces: Iterable[tuple[SourceKey, Trace]]) -> None:
        """Adds traces, in any order."""
        slots = ", ".join("?" for _ in _COLUMNS)
        self._database.execute("BEGIN")
        rows = ((*key, *trace) for key, trace in traces)
        self._database.executemany(f"INSERT INTO traces VALUES ({slots})", rows)
        self._database.execute("COMMIT")

    def records(self) -> Iterator[tuple[SourceKey, list[Trace]]]:
        """Yields source records, sorted by position, each with its traces.

        The trace of the kind `SOURCE` comes first. It is missing if no source topic holds the
        record.
        """
        order = ", ".join(_COLUMNS[: _COLUMNS.index("offset") + 1])
        cursor = self._database.execute(f"SELECT * FROM traces ORDER BY {order}")
        cursor.arraysize = _BATCH
        rows = (row for batch in iter(cursor.fetchmany, []) for row in batch)
        for key, own in groupby(rows, itemgetter(0, 1, 2, 3)):
            yield SourceKey(*key), [_trace(row[4:]) for row in own]


def _trace(row: tuple[int, ...]) -> Trace:
    kind, topic, partition, offset, settled, index, attempt, redriven, due_ms, letter = row
    place = (TraceKind(kind), topic, partition, offset)
    return Trace(*place, bool(settled), index, attempt, redriven, due_ms, LetterState(letter))
