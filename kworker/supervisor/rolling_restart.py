"""Replacing workers one at a time: rolling restarts, and those that grew too large."""

from collections import deque
from collections.abc import Iterable

import structlog

from kworker.supervisor.children.fleet import Fleet

_log = structlog.get_logger()


class RollingRestart:
    """The numbers that wait for replacement, and the one whose turn it is.

    Owned by the supervisor. The next is not touched before the new life of the
    one before has joined and runs, so that at most one worker is missing and a
    release that cannot start stops here.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: deque[int] = deque()
        self._current: tuple[int, int] | None = None  # number, and its lives before

    @property
    def left(self) -> int:
        """How many are still to be replaced, the current one included."""
        return len(self._waiting) + (self._current is not None)

    def add(self, numbers: Iterable[int]) -> None:
        """Has these replaced too; one that waits already is not listed twice."""
        self._waiting.extend(n for n in numbers if n not in self._waiting)

    def clear(self) -> None:
        """A drain has begun."""
        self._waiting.clear()
        self._current = None

    def turn(self, now: float) -> None:
        if self._current and self._settled(*self._current):
            _log.info(f"worker {self._current[0]} replaced", left=len(self._waiting))
            self._current = None
        if self._current is None and self._waiting:
            self._begin(self._waiting.popleft(), now)

    def _begin(self, number: int, now: float) -> None:
        for worker in self._fleet.workers:
            if worker.number == number:
                self._current = number, worker.lives
                self._fleet.replace(worker, now)

    def _settled(self, number: int, lives: int) -> bool:
        """Also when the fleet has shrunk below it meanwhile."""
        found = [worker for worker in self._fleet.workers if worker.number == number]
        return not found or (found[0].lives > lives and found[0].running)
