"""The suspects of all hosts: this instance's go to Redis, those of the others come from there."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kworker.core.headers import SourcePosition
from kworker.core.suspects import Suspect
from kworker.instance.crash_journal import KEPT_S, WatchedJournal, pack, unpack

_EVERY_S = 1.0


class Storage(Protocol):
    """What this needs of `RedisSuspects` or its twin."""

    def put(self, suspects: Mapping[str, str]) -> None: ...
    def get(self) -> dict[str, str]: ...
    def remove(self, sources: Iterable[str]) -> None: ...
    def close(self) -> None: ...


class SharedSuspects:
    """Owned by the claims thread, which alone talks to Redis; the poll thread reads `others`.

    Every worker tells what lies in the state folder, and takes back what has gone from there:
    those that live do it for those that died. Of what several hosts know, the most deaths count.
    """

    def __init__(
        self, storage: Storage, own: WatchedJournal, wall: Callable[[], float] = time.time
    ) -> None:
        """`own` is this instance's journal."""
        self._storage = storage
        self._own = own
        self._wall = wall
        self._told: dict[SourcePosition, Suspect] = {}
        self._settled: deque[SourcePosition] = deque()
        self._look_at = 0.0
        self._wanted = False
        self.others: Mapping[SourcePosition, Suspect] = {}  # replaced as a whole

    # -- the poll thread --------------------------------------------------------------

    def want(self) -> None:
        """There is a new assignment: looks before its first records are answered for."""
        self._wanted = True

    def settle(self, place: SourcePosition) -> None:
        """It is a suspect no more, whoever had told of it."""
        self._settled.append(place)

    # -- the claims thread ------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """When to look again, in monotonic seconds."""
        return 0.0 if self._wanted else self._look_at

    def turn(self, now: float) -> None:
        """Tells and looks if that is due. Blocks for up to three calls; raises `Unreachable`."""
        if now < self.due_at:
            return
        self._look_at, self._wanted = 0.0, False  # in this order: it may be wanted again
        self._exchange()
        self._look_at = now + _EVERY_S

    def end(self) -> None:
        """Takes back what was settled last. Blocks as `turn` does; raises `Unreachable`."""
        if self._settled:
            self._exchange()

    def close(self) -> None:
        """Ends the connection."""
        self._storage.close()

    def _exchange(self) -> None:
        self._own.refresh()
        settled = list(self._settled)
        own = self._but_old(self._own.suspects, settled)
        shared = _read(self._storage.get())
        known = self._but_old(shared, settled)
        gone = (shared.keys() - known.keys()) | (known.keys() & (self._told.keys() - own.keys()))
        self._storage.remove([_source(place) for place in gone])
        news = [s for place, s in own.items() if self._told.get(place) != s]
        self._storage.put({_source(s.place): pack(s) for s in news if _counts(s, known)})
        self._told = own
        self.others = {
            place: s for place, s in known.items() if place not in gone and _counts(s, own, more=1)
        }
        for _ in settled:
            self._settled.popleft()

    def _but_old(
        self, suspects: Mapping[SourcePosition, Suspect], settled: Iterable[SourcePosition]
    ) -> dict[SourcePosition, Suspect]:
        """Without those that were settled, of which the oldest surely are."""
        oldest = self._wall() - KEPT_S
        return {p: s for p, s in suspects.items() if s.since >= oldest and p not in settled}


def _counts(suspect: Suspect, beside: Mapping[SourcePosition, Suspect], more: int = 0) -> bool:
    """Whether it has no fewer deaths than what else is known of it, or so many `more`."""
    other = beside.get(suspect.place)
    return other is None or suspect.deaths >= other.deaths + more


def _read(told: Mapping[str, str]) -> dict[SourcePosition, Suspect]:
    """What cannot be read is none of ours."""
    found = filter(None, map(unpack, told.values()))
    return {suspect.place: suspect for suspect in found}


def _source(place: SourcePosition) -> str:
    return "/".join(map(str, place))
