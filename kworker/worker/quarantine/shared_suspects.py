"""The suspects of all hosts, shared through Redis."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kworker.core.headers import SourcePosition
from kworker.core.suspects import Suspect
from kworker.instance.crash_journal import KEPT_S, WatchedJournal, pack, unpack

_EVERY_S = 1.0


class Storage(Protocol):
    """The part of `RedisSuspects`, and of its twin, that `SharedSuspects` uses."""

    def put(self, suspects: Mapping[str, str]) -> None: ...
    def get(self) -> dict[str, str]: ...
    def remove(self, sources: Iterable[str]) -> None: ...
    def close(self) -> None: ...


class SharedSuspects:
    """Publishes this instance's suspects to Redis, and reads those of the others.

    Owned by the claims thread, which alone talks to Redis; the poll thread reads `others`.
    Every worker publishes what lies in the state folder, and removes what has gone from there,
    so the living do it for the dead. Where hosts differ, the higher number of deaths counts.
    """

    def __init__(
        self, storage: Storage, own: WatchedJournal, wall: Callable[[], float] = time.time
    ) -> None:
        """`own` is this instance's journal."""
        self._storage = storage
        self._own = own
        self._wall = wall
        self._published: dict[SourcePosition, Suspect] = {}
        self._settled: deque[SourcePosition] = deque()
        self._exchange_at = 0.0
        self._requested = False
        self.others: Mapping[SourcePosition, Suspect] = {}  # replaced as a whole

    # -- the poll thread --------------------------------------------------------------

    def request_refresh(self) -> None:
        """Has the claims thread read before it answers for a new assignment's first records."""
        self._requested = True

    def settle(self, place: SourcePosition) -> None:
        """Removes a suspect, whichever host had published it."""
        self._settled.append(place)

    # -- the claims thread ------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """The time of the next exchange, in monotonic seconds."""
        return 0.0 if self._requested else self._exchange_at

    def turn(self, now: float) -> None:
        """Publishes and reads if due. Blocks for up to three calls; raises `Unreachable`."""
        if now < self.due_at:
            return
        # In this order: the poll thread may request another meanwhile.
        self._exchange_at, self._requested = 0.0, False
        self._exchange()
        self._exchange_at = now + _EVERY_S

    def end(self) -> None:
        """Removes what was settled last. Blocks as `turn` does; raises `Unreachable`."""
        if self._settled:
            self._exchange()

    def close(self) -> None:
        """Ends the connection."""
        self._storage.close()

    def _exchange(self) -> None:
        self._own.refresh()
        settled = list(self._settled)
        own = self._current(self._own.suspects, settled)
        shared = _read(self._storage.get())
        known = self._current(shared, settled)
        gone = (shared.keys() - known.keys()) | (
            known.keys() & (self._published.keys() - own.keys())
        )
        self._storage.remove([_source(place) for place in gone])
        news = [s for place, s in own.items() if self._published.get(place) != s]
        self._storage.put({_source(s.place): pack(s) for s in news if _leads(s, known)})
        self._published = own
        self.others = {
            place: s for place, s in known.items() if place not in gone and _leads(s, own, by=1)
        }
        for _ in settled:
            self._settled.popleft()

    def _current(
        self, suspects: Mapping[SourcePosition, Suspect], settled: Iterable[SourcePosition]
    ) -> dict[SourcePosition, Suspect]:
        """Leaves out the settled, and those so old that they must have been."""
        oldest = self._wall() - KEPT_S
        return {p: s for p, s in suspects.items() if s.since >= oldest and p not in settled}


def _leads(suspect: Suspect, others: Mapping[SourcePosition, Suspect], by: int = 0) -> bool:
    """Returns True if the suspect has at least `by` more deaths than its entry in `others`."""
    other = others.get(suspect.place)
    return other is None or suspect.deaths >= other.deaths + by


def _read(stored: Mapping[str, str]) -> dict[SourcePosition, Suspect]:
    """Leaves out what cannot be read: kworker did not write it."""
    found = filter(None, map(unpack, stored.values()))
    return {suspect.place: suspect for suspect in found}


def _source(place: SourcePosition) -> str:
    return "/".join(map(str, place))
