"""Histograms of durations, and totals of transactions and Redis calls, successful or failed."""

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Upper bounds, inclusive. There is one more count, of what lasted longer."""
_BOUNDS_NS = tuple(round(bound_s * 1e9) for bound_s in BOUNDS_S)


class Durations:
    """The durations of handlers' runs, or of the waits before them.

    One thread adds durations, any thread may read them. `sum_ns` is the sum of all durations in
    nanoseconds.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_ns = 0

    def add(self, number: int, lasted_ns: int) -> None:
        """Counts `number` durations (at least 1), each as their mean; their sum is `lasted_ns`."""
        self.counts[bisect_left(_BOUNDS_NS, lasted_ns // number)] += number
        self.sum_ns += lasted_ns


class EndTimes:
    """The number of acts that ended well, of acts that failed, and the time that they took.

    An act is a transaction, or a call to Redis. One thread adds acts, any thread may read.
    """

    def __init__(self) -> None:
        self._well = self._well_us = 0
        self._failed = self._failed_us = 0

    def add(self, lasted_s: float, *, failed: bool) -> None:
        """Counts one transaction, or one call to Redis, that lasted `lasted_s`."""
        lasted_us = int(lasted_s * 1e6)
        if failed:
            self._failed += 1
            self._failed_us += lasted_us
        else:
            self._well += 1
            self._well_us += lasted_us

    @property
    def totals(self) -> tuple[int, int, int, int]:
        """The number and the total microseconds of successes, then the same two for failures."""
        return self._well, self._well_us, self._failed, self._failed_us


def total(durations: Sequence[Durations]) -> list[int]:
    """Returns the total count of each bucket, and last the sum of all durations in microseconds."""
    counts = list(map(sum, zip(*[each.counts for each in durations], strict=True)))
    none = [0] * (len(BOUNDS_S) + 1)
    return [*(counts or none), sum([each.sum_ns for each in durations]) // 1000]
