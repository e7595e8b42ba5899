"""The retry policy: another run after a failed one, or a dead letter."""

from collections.abc import Sequence
from dataclasses import dataclass

from kworker.core.failure import Failure
from kworker.core.outcome import Snooze

FINAL = frozenset(
    {"undecodable", "unreadable", "unpublishable", "crashed", "timeout", "expired", "operator"}
)
"""Kinds of failure that no retry can help; each is its own reason in the dead letter."""
PROBE_EVERY_S = 5.0  # while a circuit is open


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Another run in `after_s` seconds, the `attempt`-th.

    `delay_s` names the delay topic that it goes to next; None: it waits in memory, with its key.
    """

    after_s: float
    attempt: int
    delay_s: float | None


@dataclass(frozen=True, slots=True)
class GiveUpRetrying:
    """No other run: the record becomes a dead letter, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """n delays, n + 1 runs. `never` holds names of exceptions that are not retried."""

    delays_s: tuple[float, ...]
    never: frozenset[str] = frozenset()
    hold: bool = False

    def is_last(self, attempt: int) -> bool:
        """Returns True if no attempt comes after this one."""
        return attempt > len(self.delays_s)

    def decide(self, failure: Failure, attempt: int) -> RetryLater | GiveUpRetrying:
        """Decides after the `attempt`-th run, counted from 1; not for kind `unavailable`."""
        if failure.kind in FINAL:
            return GiveUpRetrying(failure.kind)
        if failure.kind == "reject" or self.never.intersection(failure.lineage):
            return GiveUpRetrying("rejected")
        if failure.kind == "snooze":
            return self.again(Snooze.after_s if failure.after is None else failure.after, attempt)
        if self.is_last(attempt):
            return GiveUpRetrying("exhausted")
        after_s = self.delays_s[attempt - 1] if failure.after is None else failure.after
        return self.again(after_s, attempt + 1)

    def again(self, after_s: float, attempt: int) -> RetryLater:
        """Returns another run in so many seconds; in memory if there is no delay topic."""
        in_memory = self.hold or not self.delays_s
        return RetryLater(after_s, attempt, None if in_memory else hop(self.delays_s, after_s))


def hop(delays_s: Sequence[float], after_s: float) -> float:
    """Returns the delay whose topic a record goes to next that is to wait `after_s`.

    The largest that does not exceed it, or the smallest of all.
    """
    return max((d for d in delays_s if d <= after_s), default=min(delays_s))
