"""Replaces workers one at a time: at a reload or restart, and worn-out ones."""

from collections import deque
from collections.abc import Iterable

import structlog

from kworker.supervisor.children.fleet import Fleet

_LOG = structlog.get_logger()


class RollingRestart:
    """The numbers of the workers to replace, and the one being replaced.

    Owned by the supervisor. A worker is not drained before the process that replaces the one
    before it has joined, so that at most one worker is missing, and a release that cannot start
    stops after the first.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: deque[int] = deque()
        self._current: tuple[int, int] | None = None  # number, and its lives until then

    @property
    def left(self) -> int:
        """The number of workers still to be replaced, the current one included."""
        return len(self._waiting) + (self._current is not None)

    def add(self, numbers: Iterable[int]) -> None:
        """Adds these workers; a worker that is listed already is not listed twice."""
        self._waiting.extend(n for n in numbers if n not in self._waiting)

    def clear(self) -> None:
        """Replaces nothing more: a drain has begun."""
        self._waiting.clear()
        self._current = None

    def turn(self, now: float) -> None:
        if self._current and self._is_replaced(*self._current):
            _LOG.info(f"worker {self._current[0]} replaced", left=len(self._waiting))
            self._current = None
        if self._current is None and self._waiting:
            self._begin(self._waiting.popleft(), now)

    def _begin(self, number: int, now: float) -> None:
        for worker in self._fleet.workers:
            if worker.number == number:
                self._current = number, worker.lives
                self._fleet.replace(worker, now)

    def _is_replaced(self, number: int, lives: int) -> bool:
        """Returns True also when the fleet has meanwhile shrunk below this number."""
        found = [worker for worker in self._fleet.workers if worker.number == number]
        return not found or (found[0].lives > lives and found[0].running)
