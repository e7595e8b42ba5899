"""The comparison of one CPU with all, by the records that end on each.

What the threads use of all CPUs does not tell whether one would suffice, since it costs CPU time to
hand over the interpreter's lock from one to another. So one is tried.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ComparisonPolicy:
    """The conditions of a try of one CPU, and the seconds from one comparison to the next.

    One is tried if the process, on all of them, uses between `busy` and `far_more` CPUs, and at
    least `records` records end while that is measured.
    """

    looks: int = 4  # measurements of each
    busy: float = 0.85  # with less, there is no need
    far_more: float = 2.0  # with more, the process gains from all CPUs for sure
    records: int = 500  # with fewer, it costs next to nothing to hand over the lock
    pause_s: float = 2.0  # from one comparison to the next, doubled while the result is the same
    pause_most_s: float = 30.0


class Comparison:
    """Finds out whether more records end if the threads share one CPU than if they use all.

    The threads share one CPU while `one` is True. The result holds for a pause, after which both
    are measured anew, since handlers and their load change.
    """

    def __init__(self, policy: ComparisonPolicy) -> None:
        self._policy = policy
        self.one = False
        self._trying = False  # one is measured, the result is not known
        self._faster = False  # one was, in the last comparison
        self._rate_on_all = 0.0  # records a second
        self._next_at, self._pause_s = 0.0, policy.pause_s
        self._looks: deque[tuple[float, float, int]] = deque(maxlen=policy.looks)

    def interrupt(self) -> None:
        """Forgets the measurements of a comparison that has not ended."""
        if self._trying:
            self.one = self._trying = False
        self._looks.clear()

    def add(self, lasted_s: float, used_s: float, records: int, now: float) -> None:
        """Adds a measurement of the present choice: its seconds, those of CPU time, the records.

        May change the choice, `one`.
        """
        policy = self._policy
        if now < self._next_at:
            return
        if self.one and not self._trying:
            self.one = False
            return
        self._looks.append((lasted_s, used_s, records))
        if len(self._looks) < policy.looks:
            return
        lasted_s, used_s, records = map(sum, zip(*self._looks, strict=True))
        rate, cpus = records / lasted_s, used_s / lasted_s
        if self._trying:
            self._conclude(rate >= self._rate_on_all, now)
        elif policy.busy < cpus < policy.far_more and records >= policy.records:
            self._rate_on_all = rate
            self.one = self._trying = True
            self._looks.clear()

    def _conclude(self, faster: bool, now: float) -> None:
        policy = self._policy
        same = faster == self._faster
        self._pause_s = min(2 * self._pause_s, policy.pause_most_s) if same else policy.pause_s
        self._next_at = now + self._pause_s
        self.one = self._faster = faster
        self._trying = False
        self._looks.clear()
