"""The marks that a handler leaves as it goes, and the rate of a service that has them in turns."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.watched import Broken

MARKS = 400  # of a run
_EDGES = 10  # marks, where the worker has less to do


def mark_each(records: int) -> int:
    """Returns the number of records from one mark to the next."""
    return max(1, records // MARKS)


def begun(folder: Path, run: str) -> int:
    """Returns the number of a run's processes that have left a mark."""
    return len(list(folder.glob(f"{run}.marks.*")))


def nearly_all(folder: Path, run: str) -> bool:
    """Says whether a run, in all its processes, has left nearly all its marks."""
    files = folder.glob(f"{run}.marks.*")
    return sum(file.read_bytes().count(b"\n") for file in files) > MARKS - _EDGES


def rates(
    folder: Path, run: str, each: int, turns: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """Returns the records in a second of a run's turns, and in a second of its CPU time.

    Only marks from the first turn to the last one count. Both rates are the sums of those of its
    processes. Raises Broken if too few marks were left in these turns.
    """
    by_time = by_cpu_time = 0.0
    for path in folder.glob(f"{run}.marks.*"):
        lines = path.read_text().splitlines()
        marks = sorted((int(when), int(cpu)) for when, cpu in map(str.split, lines))
        marks = [mark for mark in marks[_EDGES:] if turns[0][0] <= mark[0] <= turns[-1][1]]
        if len(marks) <= _EDGES:
            raise Broken(f"{run} left {len(marks)} marks in its turns; give a larger --share")
        (began, cpu_before), (ended, cpu_after) = marks[0], marks[-1]
        records = 1e9 * (len(marks) - 1) * each
        by_time += records / _common(turns, began, ended)
        by_cpu_time += records / (cpu_after - cpu_before)
    return by_time, by_cpu_time


def _common(turns: Iterable[tuple[int, int]], began: int, ended: int) -> int:
    """Returns how much of the time from one moment to another was in turns."""
    return sum(max(0, min(end, ended) - max(begin, began)) for begin, end in turns)
