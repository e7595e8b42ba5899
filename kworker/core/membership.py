"""The membership of a process in its group: how long it has none, and when to rejoin."""

from dataclasses import dataclass
from enum import Enum
from math import inf


class Absence(Enum):
    """The reason why a client is not a member of its group."""

    JOINING = "it has not joined yet"
    REBALANCE = "the group's rebalance does not end"
    COORDINATOR = "the group's coordinator does not answer"


@dataclass(frozen=True, slots=True)
class MembershipPolicy:
    """Limits of the time for which a process is not a member of its group, in seconds."""

    red_s: float = 15.0  # longer than most rebalances: then the status says so
    renew_s: float = 60.0  # while brokers answer: then another client joins,
    renew_most_s: float = 600.0  # and again after twice as long, up to this


class Membership:
    """Measures for how long this process has not been a member of its consumer group.

    Owned by the thread that polls. Times are monotonic seconds. If the answer to a join request is
    lost, a client waits for that answer for five minutes. So kworker replaces the client earlier,
    but rarely, because each new client makes the whole group rebalance. A client that looks for its
    coordinator is replaced, too: with librdkafka 2.16, one client never connected again after an
    outage. By the time a client is replaced, it has usually lost its partitions already.
    """

    def __init__(self, policy: MembershipPolicy, now: float) -> None:
        self._policy = policy
        self._absence: Absence | None = Absence.JOINING
        self._since = now
        self._patience_s = policy.renew_s
        self._waits_since = now

    @property
    def is_member(self) -> bool:
        return self._absence is None

    def update(self, absence: Absence | None, now: float) -> None:
        """Stores the reason why the client is no member now; None if it is a member."""
        if absence is None:
            self._patience_s = self._policy.renew_s
        elif self._absence is None:
            self._since = self._waits_since = now
        elif self._absence is Absence.COORDINATOR and absence is not Absence.COORDINATOR:
            self._waits_since = now  # the join that follows gets its time
        self._absence = absence

    def problem(self, now: float, answering_since: float) -> str | None:
        """Returns a line if this process has been out of the group for too long.

        Returns None if it has not, or if no broker answers: then `answering_since` is infinite.
        """
        absent_s = now - self._since
        if self._absence is None or absent_s < self._policy.red_s or answering_since == inf:
            return None
        renews_in_s = max(0.0, self._renew_at(answering_since) - now)
        return (
            f"not a member of the group for {absent_s:.0f} s, though brokers answer:"
            f" {self._absence.value}; work done meanwhile cannot be committed; another client"
            f" joins in {renews_in_s:.0f} s"
        )

    def renewal_due(self, now: float, answering_since: float) -> bool:
        """Returns True if a new client should replace the process's present client."""
        return self._absence is not None and now >= self._renew_at(answering_since)

    def renewed(self, now: float) -> None:
        """Notes that a new client replaces the process's present client.

        The time before the next replacement is twice as long, up to the policy's limit.
        """
        self._waits_since = now
        self._patience_s = min(self._policy.renew_most_s, 2 * self._patience_s)

    def _renew_at(self, answering_since: float) -> float:
        return max(self._waits_since, answering_since) + self._patience_s
