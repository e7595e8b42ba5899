"""The election of a leader among a consumer group's members, and its lease.

The leader's name stands in the metadata of what the group has committed for partition 0 of a
topic. The member that owns this partition is the decider: only it may appoint a leader. It may
appoint only itself, and only when the leader named so far has left the group. A rebalance may move
the partition to another member, but the leader stays. Kafka accepts commits of members only, so
each commit proves that its author is a member.
"""

import json
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

# A member's last heartbeat is at most so much older than a request of its process.
_HEARTBEAT_AGE_S = 1.0
_RED_S = 15.0  # longer than most rebalances
_REJOIN_S = 120.0


class Leader(NamedTuple):
    """The leading member: its id in the group, which lasts for one session, and its process."""

    member: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def note(self, count: int) -> str:
        """Returns commit metadata that names this leader, different for each `count`."""
        return json.dumps({**self._asdict(), "count": count})

    @classmethod
    def noted(cls, metadata: str) -> "Leader | None":
        """Returns the leader that `metadata` names; None if `note` did not write it."""
        try:
            data = json.loads(metadata)
            return cls(str(data["member"]), str(data["host"]), int(data["pid"]))
        except (ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True, slots=True)
class View:
    """The commit metadata that names the leader, as read from the group after `asked_at`."""

    asked_at: float
    metadata: str

    @property
    def named(self) -> Leader | None:
        return Leader.noted(self.metadata)


@dataclass(frozen=True, slots=True)
class Roster:
    """The ids of the group's members, as read at some time after `asked_at`."""

    asked_at: float
    members: frozenset[str]


class Claim(NamedTuple):
    """A commit by which a member of the group claims to lead it, or renews its earlier claim.

    A member may claim to lead when it is assigned partition 0. `decided_at` is the time of that
    assignment; None if the commit renews an earlier claim.
    """

    member: str
    sent_at: float
    decided_at: float | None


class Candidacy:
    """One member's part in the election of a leader: its claims to lead, and its lease.

    Owned by one thread. Times are in seconds, of a clock that also runs while the machine sleeps. A
    leader has a lease, whose length is the group's session time-out. Each claim (a commit that
    names the member) that the group accepts renews the lease. Once the lease has ended, the group
    may have removed the member, and another member may lead.
    """

    def __init__(self, session_s: float) -> None:
        self._session_s = session_s
        self._member = ""
        self._assigned_at: float | None = None  # None during a rebalance
        self._decides = False
        self._roster: Roster | None = (
            None  # read in this assignment, which ends with any change of it
        )
        self._until: float | None = None  # when the lease ends; None: none in this session
        self._heard_at = -inf  # the answer to the last claim that was accepted
        self._view = View(-inf, "")
        self._silent_since: float | None = None
        self._unplaced_since: float | None = None
        self._unnamed_since: float | None = None

    def identify(self, member: str) -> None:
        """Sets this member's id in the group, "" if it has none. With a new id it does not lead."""
        if member != self._member:
            self._member = member
            self._until = None
            self.revoked()

    def assigned(self, *, decides: bool, now: float) -> None:
        """Notes the end of a rebalance; `decides` is True if partition 0 is this member's."""
        self._assigned_at = now
        self._decides = decides
        self._roster = None

    def revoked(self) -> None:
        """Notes the start of a rebalance. A leader stays leader: it is still a member."""
        self._assigned_at = None
        self._decides = False
        self._roster = None

    def lost(self) -> None:
        """Ends this member's lease of the leadership: the client believes its session is over.

        If the group still accepts a commit by which this member claims to lead, it leads again.
        """
        self.revoked()
        if self._until is not None:
            self._until = -inf

    def leads(self, now: float) -> bool:
        return self._until is not None and now < self._until

    def lapsed(self, now: float) -> bool:
        """Returns True if this member's lease of the leadership has run out.

        Then only a claim to lead that the group accepts renews the lease.
        """
        return self._until is not None and now >= self._until

    @property
    def leader(self) -> Leader | None:
        """The leader that was named in the group's commit metadata when this was last read.

        That member may have left the group since. None if the metadata named no leader.
        """
        return self._view.named

    @property
    def wants_roster(self) -> bool:
        """True if this member may appoint a leader, but first needs the list of members."""
        return self._decides and self._roster is None and self._until is None

    def update_roster(self, roster: Roster) -> None:
        """Stores a list of members.

        Ignores a list that may be older than the present assignment, or lacks this member.
        """
        fresh = self._assigned_at is not None and roster.asked_at >= self._assigned_at
        if fresh and self._member in roster.members:
            self._roster = roster

    def update(self, view: View, now: float) -> Claim | None:
        """Stores `view`: the group's commit metadata that names the leader, and when it was read.

        If this member must now commit its own name as the leader's, returns the `Claim` for that
        commit. Otherwise returns None.
        """
        if view.asked_at < self._heard_at:
            return None  # it may be older than the claim that was accepted since
        self._watch(view, now)
        named = view.named
        if named is not None and named.member != self._member:
            self._until = self._unnamed_since = None
            gone = self._roster is not None and named.member not in self._roster.members
            return self._appointment(view, now) if gone else None
        if named is not None and self._until is not None:
            self._unnamed_since = None
            self._outlast_rebalance(view, now)
            return self._renewal(now)
        if self.leads(now):  # its name went with the topic, or a foreign commit replaced it
            return self._renewal(now)
        self._until = None
        return self._claim_without_leader(view, now)

    def accepted(self, claim: Claim, now: float) -> None:
        """Notes that the group has accepted `claim`: a commit that names this member as the leader.

        The member's lease then begins anew. But a claim under an earlier id of this member is
        ignored. A claim that is no renewal is ignored, too, if a rebalance has begun since it was
        made. For the client may have sent the commit after the rebalance, when another member may
        have had partition 0, and with it the right to appoint a leader.
        """
        still_decides = claim.decided_at in (None, self._assigned_at)
        if claim.member == self._member and still_decides:
            self._until = claim.sent_at + self._session_s
            self._heard_at = now

    def expelled(self, claim: Claim) -> None:
        """Notes that the group has refused `claim`, a commit that names this member as the leader.

        The group does not know the member id in the claim. If this is still the member's id, the
        member's lease of the leadership ends.
        """
        if claim.member == self._member:
            self._until = None

    def overdue(self) -> bool:
        """Returns True if this client has waited too long for an assignment.

        Then a new client should join the group in its place.
        """
        return self._lasts(self._unplaced_since) >= _REJOIN_S

    def problem(self) -> str:
        """Returns a text if a rebalance does not end, or no leader has been heard of for long.

        Returns "" if the last view of the group shows no such problem.
        """
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
        """Notes that a new client joins the group in place of this member's present client.

        The time for which `overdue` lets a client wait for an assignment begins anew.
        """
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
        """Extends this member's lease of the leadership, if it leads and a rebalance is under way.

        During a rebalance no claim to lead can be made, and the group removes no member.
        """
        if self._assigned_at is None and self._until is not None and self.leads(now):
            self._until = max(self._until, view.asked_at + self._session_s - _HEARTBEAT_AGE_S)

    def _claim_without_leader(self, view: View, now: float) -> Claim | None:
        """Returns the claim by which this member can become leader now; None if it has to wait.

        Called if the group's commit metadata names no leader, or names this member though it has no
        lease. Another member may have been named before, in metadata that was lost, and may still
        have its lease. So this member first waits for the length of a lease, unless it is alone in
        the group. It also waits for an assignment and, if no leader is named, for partition 0.
        """
        self._unnamed_since = _since(self._unnamed_since, True, view.asked_at)
        alone = self._roster is not None and self._roster.members == {self._member}
        if not alone and self._lasts(self._unnamed_since) < self._session_s:
            return None
        return self._appointment(view, now) if view.named is None else self._renewal(now)

    def _appointment(self, view: View, now: float) -> Claim | None:
        """Returns a claim by which this member appoints itself leader; None if it may not.

        The member must have partition 0, and `view` must be newer than the member's assignment.
        """
        if not self._decides or self._assigned_at is None or view.asked_at < self._assigned_at:
            return None
        return Claim(self._member, now, self._assigned_at)

    def _renewal(self, now: float) -> Claim | None:
        # During a rebalance a commit would wait behind the request to join.
        return None if self._assigned_at is None else Claim(self._member, now, None)


def _since(before: float | None, holds: bool, now: float) -> float | None:
    """Returns the time since when a condition has held; None if it does not hold."""
    if not holds:
        return None
    return now if before is None else before
