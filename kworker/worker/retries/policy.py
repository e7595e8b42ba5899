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
    """The decision to run a record again in `after_s` seconds, as run number `attempt`.

    `delay_s` is the delay of the topic in which the record waits next. If it is None, the record
    waits in memory, and the later records of its key wait, too.
    """

    after_s: float
    attempt: int
    delay_s: float | None


@dataclass(frozen=True, slots=True)
class GiveUpRetrying:
    """The decision to make a record a dead letter, with this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The settings of retries.

    `delays_s` has the delay before each retry. So the last attempt of a record has the number
    `len(delays_s) + 1`. A run that raised an exception named in `never` is not retried. With
    `hold`, records wait for a retry in memory, and not in delay topics.
    """

    delays_s: tuple[float, ...]
    never: frozenset[str] = frozenset()
    hold: bool = False

    def is_last(self, attempt: int) -> bool:
        """Returns True if no attempt comes after this one."""
        return attempt > len(self.delays_s)

    def decide(self, failure: Failure, attempt: int) -> RetryLater | GiveUpRetrying:
        """Decides whether a record runs again after a failed run.

        `attempt` is the number of that run, counted from 1. Must not be called for a failure of
        kind `unavailable`.
        """
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
        """Returns the decision to run the record again in `after_s` seconds.

        Until then the record waits in a delay topic, or in memory if `hold` is set or there are no
        delay topics.
        """
        in_memory = self.hold or not self.delays_s
        return RetryLater(after_s, attempt, None if in_memory else hop(self.delays_s, after_s))


def hop(delays_s: Sequence[float], after_s: float) -> float:
    """Returns the delay of the topic that a record enters next, if it is to wait `after_s` seconds.

    This is the largest delay that does not exceed `after_s`, or else the smallest delay.
    """
    return max((d for d in delays_s if d <= after_s), default=min(delays_s))
