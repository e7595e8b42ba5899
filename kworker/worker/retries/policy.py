"""What becomes of a record whose run failed: another run, or none."""

from collections.abc import Sequence
from dataclasses import dataclass

from kworker.core.failure import Failure
from kworker.core.outcome import Snooze

FINAL = frozenset(
    {"undecodable", "unreadable", "unpublishable", "crashed", "timeout", "expired", "operator"}
)
"""Kinds of failure after which no run can help; each is its own reason in the dead letter."""
STANDSTILL_S = 5.0  # between the probes of what is unavailable


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Another run in `after_s` seconds, the `attempt`-th.

    `delay_s` is the delay whose topic it goes to next; None: it waits in memory, its key with it.
    """

    after_s: float
    attempt: int
    delay_s: float | None


@dataclass(frozen=True, slots=True)
class GiveUpRetrying:
    """No other run: a dead letter, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """n delays, n + 1 runs. `never` are names of exceptions that are poison at once."""

    delays_s: tuple[float, ...]
    never: frozenset[str] = frozenset()
    hold: bool = False

    def last(self, attempt: int) -> bool:
        """Whether no attempt comes after this one."""
        return attempt > len(self.delays_s)

    def decide(self, failure: Failure, attempt: int) -> RetryLater | GiveUpRetrying:
        """After the `attempt`-th run, counted from 1, has failed. Not for what is unavailable."""
        if failure.kind in FINAL:
            return GiveUpRetrying(failure.kind)
        if failure.kind == "reject" or self.never.intersection(failure.lineage):
            return GiveUpRetrying("rejected")
        if failure.kind == "snooze":
            return self.again(Snooze.after_s if failure.after is None else failure.after, attempt)
        if self.last(attempt):
            return GiveUpRetrying("exhausted")
        after_s = self.delays_s[attempt - 1] if failure.after is None else failure.after
        return self.again(after_s, attempt + 1)

    def again(self, after_s: float, attempt: int) -> RetryLater:
        """Without delays there is no topic to wait in."""
        in_memory = self.hold or not self.delays_s
        return RetryLater(after_s, attempt, None if in_memory else hop(self.delays_s, after_s))


def hop(delays_s: Sequence[float], after_s: float) -> float:
    """The delay whose topic holds a record that shall wait `after_s`, for a part of that or all.

    The largest that is not too long; the smallest, when all are.
    """
    return max((d for d in delays_s if d <= after_s), default=min(delays_s))
