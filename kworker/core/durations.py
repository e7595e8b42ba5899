"""Histograms of durations, and totals of transactions and Redis calls, successful or failed."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Upper bounds, inclusive. There is one more count, of what lasted longer."""
_BOUNDS_NS = tuple(round(bound_s * 1e9) for bound_s in BOUNDS_S)


class Durations:
    """The durations of handlers' runs, or of the waits before them.

    One thread adds durations, any thread may read them. `sum_ns` is the sum of all durations in
    nanoseconds.

    If durations come one by one, `add_later` is several times as fast as `add`. One other thread
    then calls `tally` now and again, and adds nothing itself.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_ns = 0
        self._later: list[int] = []
        self.add_later = self._later.append

    def add(self, number: int, lasted_ns: int) -> None:
        """Counts `number` durations (at least 1), each as their mean; their sum is `lasted_ns`."""
        self.counts[bisect_left(_BOUNDS_NS, lasted_ns // number)] += number
        self.sum_ns += lasted_ns

    def tally(self) -> None:
        """Counts the durations, in nanoseconds, that were passed to `add_later`."""
        later = self._later
        if not (number := len(later)):
            return
        ordered = sorted(later[:number])  # the other thread may append meanwhile
        del later[:number]
        self.sum_ns += sum(ordered)
        below = 0
        for i, bound_ns in enumerate(_BOUNDS_NS):
            up_to = bisect_right(ordered, bound_ns, below)
            self.counts[i] += up_to - below
            below = up_to
        self.counts[-1] += number - below


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
