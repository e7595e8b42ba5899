"""Liveness of other owners of claims: one whose heartbeat stands still is dead."""

from collections.abc import Mapping
from dataclasses import dataclass

_UNSEEN = 0.5  # of a lease; after so long without an answer, watching starts anew
_FORGET = 4.0  # leases after which an owner that holds no wanted event is dropped


@dataclass(slots=True)
class _WatchedOwner:
    wanted_at: float  # an event that it holds was last wanted here
    beat: int | None = None
    since: float | None = None  # when this beat was first seen; None: no answer yet
    is_dead: bool = False


class OwnerLiveness:
    """Finds dead owners of claims: worker processes without a heartbeat for a whole lease.

    Owned by the claims thread. Times are monotonic seconds. After an outage of Redis, or a pause of
    this process, the observation of every owner starts anew, because heartbeats could not arrive.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._owners: dict[str, _WatchedOwner] = {}
        self._answered = 0.0

    @property
    def owners(self) -> list[str]:
        """The observed owners, whose heartbeats the next call to Redis reads."""
        return list(self._owners)

    def watch(self, owner: str, now: float) -> None:
        """Observes an owner whose claim this worker wants."""
        self._owners.setdefault(owner, _WatchedOwner(now)).wanted_at = now

    def update(self, beats: Mapping[str, int | None], asked: float, answered: float) -> None:
        """Stores the heartbeats that Redis returned to a call.

        The call was sent at the time `asked`, and its answer came at the time `answered`.
        """
        if asked - self._answered > _UNSEEN * self._lease_s:
            self.interrupted()
        self._answered = answered
        for owner, beat in beats.items():
            watched = self._owners[owner]
            if watched.since is None or watched.beat != beat:
                watched.beat, watched.since = beat, answered
            watched.is_dead = asked - watched.since >= self._lease_s
        self._forget(answered)

    def interrupted(self) -> None:
        """Starts to observe every owner anew, since no heartbeat arrives while Redis is down."""
        for watched in self._owners.values():
            watched.since, watched.is_dead = None, False

    def is_dead(self, owner: str) -> bool:
        """Returns True if the owner is observed and sent no heartbeat for a whole lease."""
        watched = self._owners.get(owner)
        return watched is not None and watched.is_dead

    def beat(self, owner: str) -> int | None:
        """Returns the number of the owner's last known heartbeat; None if there is none."""
        watched = self._owners.get(owner)
        return watched.beat if watched else None

    def _forget(self, now: float) -> None:
        old = now - _FORGET * self._lease_s
        for owner in [owner for owner, watched in self._owners.items() if watched.wanted_at < old]:
            del self._owners[owner]
