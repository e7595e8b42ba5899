"""Runs that make no progress, told from those whose threads wait for a CPU or the lock."""

import time
from collections.abc import Callable, Sequence, Sized
from typing import Generic, NamedTuple, TypeVar

STUCK_S, STUCK_S_MOST = 0.01, 0.1
_LOOK, _AT_ONCE = 0.5, 0.6  # of the time after which a run is stuck: twice the latter is more
Run = TypeVar("Run", bound=Sized)


class _Clocks(NamedTuple):
    """Seconds, by which it is told how long a run has made no progress.

    `idle_s` goes on while the poll thread leaves the interpreter's lock to others, and `passed_s`
    always. Neither goes far at a time.
    """

    idle_s: float = 0.0
    passed_s: float = 0.0


class RunWatch(Generic[Run]):
    """Tells which runs make no progress. Used by the poll thread.

    A handler's thread makes none, either, while it waits for the interpreter's lock (GIL) or for a
    CPU. So only the time counts in which the poll thread left the lock to others; and little of it
    at a time, for the whole process may have been stopped, as it is in a container beyond its
    quota. What makes no progress for STUCK_S_MOST is stuck, whoever had the lock.
    """

    def __init__(self, threads: int, computed_s: Callable[[], float] = time.thread_time) -> None:
        """`computed_s` returns the CPU time of the calling thread."""
        self._computed_s = computed_s
        self._looked_at = self._computed_by_then = 0.0
        self._clocks = _Clocks()
        # The run of each thread, its records that had not begun, and since when.
        self._seen: list[tuple[Run | None, int, _Clocks]] = [(None, 0, self._clocks)] * threads

    def look(self, current: Sequence[Run | None], now: float, record_s: float) -> list[Run] | None:
        """Returns the runs without progress, given the run of each thread; None if it is too early.

        `record_s` is the usual time of a record. The caller takes back what has not begun of the
        runs that are returned.
        """
        enough_s = min(STUCK_S_MOST, max(STUCK_S, 2 * record_s))
        since_s = now - self._looked_at
        if since_s < _LOOK * enough_s:
            return None
        self._advance(now, since_s, _AT_ONCE * enough_s)
        idle_s, passed_s = self._clocks
        stuck: list[Run] = []
        for nth, (run, before) in enumerate(zip(current, self._seen, strict=True)):
            left = 0 if run is None else len(run)
            if run is None or run is not before[0] or left != before[1]:
                self._seen[nth] = run, left, self._clocks
            elif idle_s - before[2].idle_s >= enough_s or (
                passed_s - before[2].passed_s >= STUCK_S_MOST
            ):
                self._seen[nth] = run, 0, before[2]
                stuck.append(run)
        return stuck

    def _advance(self, now: float, since_s: float, most_s: float) -> None:
        computed_s = self._computed_s()
        idle_s = since_s - (computed_s - self._computed_by_then)
        self._looked_at, self._computed_by_then = now, computed_s
        self._clocks = _Clocks(
            self._clocks.idle_s + max(0.0, min(idle_s, most_s)),
            self._clocks.passed_s + min(since_s, _AT_ONCE * STUCK_S_MOST),
        )
