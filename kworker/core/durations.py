"""The durations of what handlers do, counted by bounds for a histogram."""

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Upper bounds, inclusive. There is one more count, of what lasted longer."""


class Durations:
    """The durations of handlers' runs, or of the waits before them. One thread adds, any may read.

    `sum_us` is the sum of all durations in microseconds.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_us = 0

    def add(self, number: int, lasted_s: float) -> None:
        """Counts `number` durations, 1 or more, of `lasted_s` together, each with their mean."""
        self.counts[bisect_left(BOUNDS_S, lasted_s / number)] += number
        self.sum_us += int(lasted_s * 1e6)


def total(durations: Sequence[Durations]) -> list[int]:
    """Returns the sum of each count, and last the sum of the durations in microseconds."""
    counts = list(map(sum, zip(*[each.counts for each in durations], strict=True)))
    none = [0] * (len(BOUNDS_S) + 1)
    return [*(counts or none), sum([each.sum_us for each in durations])]
