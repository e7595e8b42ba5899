"""The membership of a process in its group: how long it has none, and when to rejoin."""

from dataclasses import dataclass
from enum import Enum
from math import inf


class Absence(Enum):
    """The cause for which a client is no member of its group."""

    JOINING = "it has not joined yet"
    REBALANCE = "the group's rebalance does not end"
    COORDINATOR = "the group's coordinator does not answer"


@dataclass(frozen=True, slots=True)
class MembershipPolicy:
    """Limits for the time without membership, in seconds."""

    red_s: float = 15.0  # longer than most rebalances: then the status says so
    renew_s: float = 60.0  # while brokers answer: then another client joins,
    renew_most_s: float = 600.0  # and again after twice as long, up to this


class Membership:
    """Measures for how long this process has been no member of its group.

    Owned by the thread that polls. Times are monotonic seconds. A client waits five minutes for
    the answer to a lost join request, so another client takes its place; but not often, because
    each makes the whole group rebalance. A coordinator that is down is found again by the
    client itself, and its partitions may still be its own.
    """

    def __init__(self, policy: MembershipPolicy, now: float) -> None:
        self._policy = policy
        self._absence: Absence | None = Absence.JOINING
        self._since = now
        self._patience_s = policy.renew_s
        self._renewed_at = now

    @property
    def is_member(self) -> bool:
        return self._absence is None

    def update(self, absence: Absence | None, now: float) -> None:
        """Stores the client's present cause of absence; None: it is a member."""
        if absence is None:
            self._patience_s = self._policy.renew_s
        elif self._absence is None:
            self._since = self._renewed_at = now
        self._absence = absence

    def problem(self, now: float, answering_since: float) -> str | None:
        """Returns the problem as a line; None while no broker answers, reported elsewhere."""
        absent_s = now - self._since
        if self._absence is None or absent_s < self._policy.red_s or answering_since == inf:
            return None
        if self._absence is Absence.COORDINATOR:
            then = "the client looks for it"
        else:
            then = (
                f"another client joins in {max(0.0, self._renew_at(answering_since) - now):.0f} s"
            )
        return (
            f"not a member of the group for {absent_s:.0f} s, though brokers answer:"
            f" {self._absence.value}; work done meanwhile cannot be committed; {then}"
        )

    def renewal_due(self, now: float, answering_since: float) -> bool:
        """Returns True when another client should take this one's place."""
        return self._absence not in (None, Absence.COORDINATOR) and now >= self._renew_at(
            answering_since
        )

    def renewed(self, now: float) -> None:
        """Notes that another client takes its place; the next one is due after twice as long."""
        self._renewed_at = now
        self._patience_s = min(self._policy.renew_most_s, 2 * self._patience_s)

    def _renew_at(self, answering_since: float) -> float:
        return max(self._renewed_at, answering_since) + self._patience_s
