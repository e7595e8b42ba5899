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
    """The methods of `RedisTexts`, and of its in-memory twin, by which instances share state."""

    def put(self, texts: Mapping[str, str]) -> None: ...
    def get(self) -> dict[str, str]: ...
    def remove(self, names: Iterable[str]) -> None: ...
    def close(self) -> None: ...


class SharedSuspects:
    """Publishes this instance's suspects to Redis, and reads those of the other instances.

    Owned by the claims thread, which alone talks to Redis. The poll thread reads `others`, the
    suspects of the other instances. The workers of an instance share a crash journal. Each of them
    publishes all suspects in that journal, and removes a suspect from Redis when the journal no
    longer has it. So the living workers also do this for the suspects of a dead worker. If
    instances have counted different numbers of deaths for a suspect, the higher number is used.
    """

    def __init__(
        self, storage: Storage, own: WatchedJournal, wall: Callable[[], float] = time.time
    ) -> None:
        """`own` is the crash journal of this instance."""
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
        """Makes the claims thread read the suspects from Redis before it answers more claims."""
        self._requested = True

    def settle(self, place: SourcePosition) -> None:
        """Makes the claims thread remove a suspect from Redis, whichever instance published it."""
        self._settled.append(place)

    # -- the claims thread ------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """The time of the next exchange with Redis, in monotonic seconds; 0 if it is requested."""
        return 0.0 if self._requested else self._exchange_at

    def turn(self, now: float) -> None:
        """Publishes own suspects to Redis and reads those of other instances, if it is time.

        Makes up to three calls to Redis. Raises `Unreachable` if a call fails.
        """
        if now < self.due_at:
            return
        # In this order: the poll thread may request another meanwhile.
        self._exchange_at, self._requested = 0.0, False
        self._exchange()
        self._exchange_at = now + _EVERY_S

    def end(self) -> None:
        """Removes from Redis the suspects that were given to `settle` since the last exchange.

        Makes up to three calls to Redis. Raises `Unreachable` if a call fails.
        """
        if self._settled:
            self._exchange()

    def close(self) -> None:
        """Closes the connection to Redis."""
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
        """Returns the suspects except the settled ones and those older than a day (`KEPT_S`)."""
        oldest = self._wall() - KEPT_S
        return {p: s for p, s in suspects.items() if s.since >= oldest and p not in settled}


def _leads(suspect: Suspect, others: Mapping[SourcePosition, Suspect], by: int = 0) -> bool:
    """Returns True if `others` lacks this suspect, or counts at least `by` fewer deaths for it."""
    other = others.get(suspect.place)
    return other is None or suspect.deaths >= other.deaths + by


def _read(stored: Mapping[str, str]) -> dict[SourcePosition, Suspect]:
    """Returns the suspects stored in Redis, without entries that kworker cannot read."""
    found = filter(None, map(unpack, stored.values()))
    return {suspect.place: suspect for suspect in found}


def _source(place: SourcePosition) -> str:
    return "/".join(map(str, place))
