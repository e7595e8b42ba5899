"""The marks that a handler leaves as it goes, and the rate of a service that has them in turns."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.watched import Broken

MARKS = 400  # of a run
EDGES = 10  # marks, where the worker has less to do


def mark_each(records: int) -> int:
    """Returns the number of records from one mark to the next."""
    return max(1, records // MARKS)


def count(folder: Path, run: str) -> int:
    """Returns the number of marks that a run of one process has left so far."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(f"{run}.marks.*"))


def rates(
    folder: Path, run: str, each: int, turns: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """Returns the records in a second of a run's turns, and in a second of its CPU time.

    Only marks from the first turn to the last one count. Raises Broken if these are too few.
    """
    [path] = folder.glob(f"{run}.marks.*")
    lines = path.read_text().splitlines()
    marks = sorted((int(when), int(cpu)) for when, cpu in map(str.split, lines))
    marks = [mark for mark in marks[EDGES:] if turns[0][0] <= mark[0] <= turns[-1][1]]
    if len(marks) <= EDGES:
        raise Broken(f"{run} left {len(marks)} marks in its turns; give a larger --share")
    (began, cpu_before), (ended, cpu_after) = marks[0], marks[-1]
    records = 1e9 * (len(marks) - 1) * each
    return records / _common(turns, began, ended), records / (cpu_after - cpu_before)


def _common(turns: Iterable[tuple[int, int]], began: int, ended: int) -> int:
    """Returns how much of the time from one moment to another was in turns."""
    return sum(max(0, min(end, ended) - max(begin, began)) for begin, end in turns)
