"""The marks that a handler leaves as it goes, and the rates of the slices between them."""

from collections.abc import Iterator
from pathlib import Path

MARKS = 400  # of a run
SLICE = 20  # marks: long, beside the up to 1,024 records that a worker hands to a thread at once
_EDGES = 10  # marks at the start and the end, where the worker has less to do


def mark_each(records: int) -> int:
    """Returns the number of records from one mark to the next."""
    return max(1, records // MARKS)


def rates(folder: Path, run: str, each: int) -> Iterator[tuple[float, float]]:
    """Yields the rates of each slice of a run, by time and by the CPU time of the process.

    A service of several processes has slices in each of them.
    """
    for path in folder.glob(f"{run}.marks.*"):
        lines = path.read_text().splitlines()[_EDGES:-_EDGES]
        marks = [tuple(map(int, line.split())) for line in lines]
        for (began, cpu_before), (ended, cpu_after) in zip(marks, marks[SLICE:], strict=False):
            records = 1e9 * SLICE * each
            yield records / (ended - began), records / (cpu_after - cpu_before)
