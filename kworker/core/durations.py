"""The durations of what handlers do, counted by bounds for a histogram."""

from bisect import bisect_left
from collections.abc import Iterable

BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Upper bounds, inclusive. There is one more count, of those that lasted longer."""


class Durations:
    """The durations of runs, as one thread measures them; any thread may read.

    `sum_us` is the sum of all durations in microseconds.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_us = 0

    def add(self, runs: int, lasted_s: float) -> None:
        """Counts `runs` runs, 1 or more, that lasted `lasted_s` together, each with their mean."""
        self.counts[bisect_left(BOUNDS_S, lasted_s / runs)] += runs
        self.sum_us += int(lasted_s * 1e6)


def total(times: Iterable[Durations]) -> list[int]:
    """Returns the sum of each count, and last the sum of the durations in microseconds."""
    rows = [[*each.counts, each.sum_us] for each in times]
    return [sum(column) for column in zip(*rows, strict=True)] or [0] * (len(BOUNDS_S) + 2)
