"""Which member of a consumer group leads it, and for how long it may rely on that.

The leader's name stands in the metadata of what the group has committed for partition 0 of a
topic. The member that owns this partition is the decider: it alone may appoint a leader, itself,
and only when the one that is named is no member any more. A rebalance moves the partition, and
the leader stays. Kafka takes commits of present members only, so each proves its author's place.
"""

import json
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

# A member's last heartbeat is at most so much older than a question of its process.
_HEARTBEAT_AGE_S = 1.0
_RED_S = 15.0  # longer than most rebalances
_REJOIN_S = 120.0


class Leader(NamedTuple):
    """A member, by the id that the group gave it for one session, and its process."""

    member: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def note(self, count: int) -> str:
        """The metadata that names it, another for each count."""
        return json.dumps({**self._asdict(), "count": count})

    @classmethod
    def noted(cls, metadata: str) -> "Leader | None":
        """The leader that metadata names; None where `note` has not written it."""
        try:
            told = json.loads(metadata)
            return cls(str(told["member"]), str(told["host"]), int(told["pid"]))
        except (ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True, slots=True)
class View:
    """What the group holds, as it was told at some time after `asked_at`."""

    asked_at: float
    metadata: str

    @property
    def named(self) -> Leader | None:
        return Leader.noted(self.metadata)


@dataclass(frozen=True, slots=True)
class Roster:
    """The ids of the group's members, as they were told at some time after `asked_at`."""

    asked_at: float
    members: frozenset[str]


class Claim(NamedTuple):
    """A commit by which a member names itself.

    `decided_at` is the assignment by which it is the decider; None when it was named before.
    """

    member: str
    sent_at: float
    decided_at: float | None


class Candidacy:
    """One member's part: when it claims to lead, and whether it leads.

    Owned by one thread. Times are seconds of a clock that goes on while the machine sleeps. A
    leader has a lease, which begins anew with each claim that the group accepts, and ends with
    the session that the coordinator counts from there: after that, another may lead.
    """

    def __init__(self, session_s: float) -> None:
        self._session_s = session_s
        self._member = ""
        self._assigned_at: float | None = None  # None during a rebalance
        self._decides = False
        self._roster: Roster | None = None  # of this assignment: each change of it ends that
        self._until: float | None = None  # when the lease ends; None: none in this session
        self._heard_at = -inf  # the answer to the last claim that was accepted
        self._view = View(-inf, "")
        self._silent_since: float | None = None
        self._unplaced_since: float | None = None
        self._doubted_since: float | None = None

    def identify(self, member: str) -> None:
        """Takes the id that the group knows it by, "" without one. Another is another session."""
        if member != self._member:
            self._member = member
            self._until = None
            self.revoked()

    def assigned(self, *, decides: bool, now: float) -> None:
        """A rebalance is over; `decides` says whether partition 0 is this member's."""
        self._assigned_at = now
        self._decides = decides
        self._roster = None

    def revoked(self) -> None:
        """A rebalance begins. A leader leads on: it is a member all the same."""
        self._assigned_at = None
        self._decides = False
        self._roster = None

    def lost(self) -> None:
        """The client has reason to believe that its session is over. A claim can tell otherwise."""
        self.revoked()
        if self._until is not None:
            self._until = -inf

    def leads(self, now: float) -> bool:
        return self._until is not None and now < self._until

    def lapsed(self, now: float) -> bool:
        """Whether it has led, and only the group can tell if it still does."""
        return self._until is not None and now >= self._until

    @property
    def leader(self) -> Leader | None:
        """The one that was named last; it may be gone."""
        return self._view.named

    @property
    def wants_roster(self) -> bool:
        """Whether it has to know who is a member: the decider, once after each rebalance."""
        return self._decides and self._roster is None and self._until is None

    def learn(self, roster: Roster) -> None:
        """Takes a roster in, unless it may be older than this assignment."""
        fresh = self._assigned_at is not None and roster.asked_at >= self._assigned_at
        if fresh and self._member in roster.members:
            self._roster = roster

    def look(self, view: View, now: float) -> Claim | None:
        """Takes a view in; the claim that is to be made now, if there is one."""
        if view.asked_at < self._heard_at:
            return None  # it may be older than the claim that was accepted since
        self._watch(view, now)
        named = view.named
        if named is not None and named.member != self._member:
            self._until = self._doubted_since = None
            gone = self._roster is not None and named.member not in self._roster.members
            return self._appointment(view, now) if gone else None
        if named is not None and self._until is not None:
            self._doubted_since = None
            self._outlast_rebalance(view, now)
            return self._renewal(now)
        if self.leads(now):  # its name went with the topic, or a stranger's commit is over it
            return self._renewal(now)
        self._until = None
        return self._doubted(view, now)

    def accepted(self, claim: Claim, now: float) -> None:
        """The group has committed a claim of this member's.

        An appointment counts only in the assignment in which it was decided: the client may have
        kept it back until the next, with another decider.
        """
        still_decides = claim.decided_at in (None, self._assigned_at)
        if claim.member == self._member and still_decides:
            self._until = claim.sent_at + self._session_s
            self._heard_at = now

    def expelled(self, claim: Claim) -> None:
        """The group has refused a claim, because it does not know the member any more."""
        if claim.member == self._member:
            self._until = None

    def overdue(self) -> bool:
        """Whether it has had no place in the group for so long that another client should join."""
        return self._lasts(self._unplaced_since) >= _REJOIN_S

    def reason(self) -> str:
        """What is wrong with the group, as of the last view; "" when nothing is."""
        unplaced_s, silent_s = self._lasts(self._unplaced_since), self._lasts(self._silent_since)
        if unplaced_s >= _RED_S:
            return f"no place in it for {unplaced_s:.0f} s: a rebalance does not end"
        if silent_s < max(_RED_S, 2 * self._session_s):
            return ""
        if self.leader is None:
            return (
                f"no leader for {silent_s:.0f} s: partition 0 belongs to a client which does not"
                " take the lead, such as a tool that joined this group"
            )
        return (
            f"{self.leader} leads, and has been silent for {silent_s:.0f} s: it is busy, or it is"
            " gone and partition 0 belongs to a client which does not take the lead"
        )

    def rejoin(self) -> None:
        """Another client joins: the time that it may take begins."""
        self.identify("")
        self._unplaced_since = None

    def _watch(self, view: View, now: float) -> None:
        leads = self.leads(now)
        unplaced = self._assigned_at is None and not leads
        self._unplaced_since = _since(self._unplaced_since, unplaced, view.asked_at)
        if leads or view.metadata != self._view.metadata:
            self._silent_since = None
        self._silent_since = _since(self._silent_since, not leads, view.asked_at)
        self._view = view

    def _lasts(self, since: float | None) -> float:
        return 0.0 if since is None else self._view.asked_at - since

    def _outlast_rebalance(self, view: View, now: float) -> None:
        """No claim is possible in a rebalance, nor is a member expelled that waits for its end."""
        if self._assigned_at is None and self._until is not None and self.leads(now):
            self._until = max(self._until, view.asked_at + self._session_s - _HEARTBEAT_AGE_S)

    def _doubted(self, view: View, now: float) -> Claim | None:
        """Of a view that names nobody, or this member without it knowing why.

        Whoever led when its name was lost may do so for the rest of its lease.
        """
        self._doubted_since = _since(self._doubted_since, True, view.asked_at)
        alone = self._roster is not None and self._roster.members == {self._member}
        if not alone and self._lasts(self._doubted_since) < self._session_s:
            return None
        return self._appointment(view, now) if view.named is None else self._renewal(now)

    def _appointment(self, view: View, now: float) -> Claim | None:
        """By the decider, of a view that is no older than the assignment which made it that."""
        if not self._decides or self._assigned_at is None or view.asked_at < self._assigned_at:
            return None
        return Claim(self._member, now, self._assigned_at)

    def _renewal(self, now: float) -> Claim | None:
        # During a rebalance a commit would wait behind the request to join.
        return None if self._assigned_at is None else Claim(self._member, now, None)


def _since(before: float | None, holds: bool, now: float) -> float | None:
    """The first of the successive times at which a condition held."""
    if not holds:
        return None
    return now if before is None else before
