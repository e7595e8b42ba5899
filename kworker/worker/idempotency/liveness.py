"""When another owner of claims counts as dead: its beat stands still while Redis answers."""

from collections.abc import Mapping
from dataclasses import dataclass

_UNSEEN = 0.5  # of a lease: so long without an answer, and watching begins anew
_FORGET = 4.0  # leases after which an owner that is in nobody's way is watched no more


@dataclass(slots=True)
class _WatchedOwner:
    met: float
    beat: int | None = None
    since: float | None = None  # when this beat was first seen; None: no beat was
    silent: bool = False


class OwnerLiveness:
    """Which owners let a whole lease go by without a beat, though they could have renewed it.

    Owned by the claims thread. Times are monotonic seconds. An outage of Redis, or of this
    process, starts every watch anew: silence counts only while it could have been broken.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._owners: dict[str, _WatchedOwner] = {}
        self._answered = 0.0

    @property
    def owners(self) -> list[str]:
        """Those whose beats are to be asked for."""
        return list(self._owners)

    def meet(self, owner: str, now: float) -> None:
        """It holds what somebody wants."""
        self._owners.setdefault(owner, _WatchedOwner(now)).met = now

    def hear(self, beats: Mapping[str, int | None], asked: float, answered: float) -> None:
        """What Redis told, and when it was asked and had answered."""
        if asked - self._answered > _UNSEEN * self._lease_s:
            self.interrupted()
        self._answered = answered
        for owner, beat in beats.items():
            watched = self._owners[owner]
            if watched.since is None or watched.beat != beat:
                watched.beat, watched.since = beat, answered
            watched.silent = asked - watched.since >= self._lease_s
        self._forget(answered)

    def interrupted(self) -> None:
        """Redis did not answer: who could not renew must first have time to."""
        for watched in self._owners.values():
            watched.since, watched.silent = None, False

    def dead(self, owner: str) -> bool:
        """It has been silent for a lease."""
        watched = self._owners.get(owner)
        return watched is not None and watched.silent

    def beat(self, owner: str) -> int | None:
        """The last that was heard; None for nothing."""
        watched = self._owners.get(owner)
        return watched.beat if watched else None

    def _forget(self, now: float) -> None:
        old = now - _FORGET * self._lease_s
        for owner in [owner for owner, watched in self._owners.items() if watched.met < old]:
            del self._owners[owner]
