"""Replaces workers one at a time: all of them at a reload or restart, or those that are worn out.

A worker is worn out if it exceeds `memory` or has reached `max_records`.
"""

from collections import deque
from collections.abc import Mapping

import structlog

from kworker.supervisor.children.fleet import Fleet

_LOG = structlog.get_logger()


class RollingRestart:
    """Replaces workers one after another. Owned by the supervisor.

    A worker is drained only after the previous worker's replacement has joined the consumer group.
    So at most one worker is missing at a time. If the workers of a new release cannot start, only
    the first worker is lost.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: deque[tuple[int, str]] = deque()  # numbers, and why they are replaced
        self._current: tuple[int, int] | None = None  # number, and its lives until then

    @property
    def left(self) -> int:
        """The number of workers still to be replaced, the current one included."""
        return len(self._waiting) + (self._current is not None)

    def add(self, reasons: Mapping[int, str]) -> None:
        """Adds the workers with the numbers in `reasons`, except those that already wait.

        `reasons` says why each is replaced: a metric counts the replacements by reason.
        """
        waiting = dict(self._waiting)
        self._waiting.extend(each for each in reasons.items() if each[0] not in waiting)

    def clear(self) -> None:
        """Cancels all further replacements, because a drain has begun."""
        self._waiting.clear()
        self._current = None

    def turn(self, now: float) -> None:
        if self._current and self._is_replaced(*self._current):
            left = len(self._waiting)
            _LOG.info(f"worker {self._current[0]} was replaced; {left} more are to be replaced")
            self._current = None
        if self._current is None and self._waiting:
            self._begin(*self._waiting.popleft(), now)

    def _begin(self, number: int, reason: str, now: float) -> None:
        for worker in self._fleet.workers:
            if worker.number == number:
                self._current = number, worker.lives
                self._fleet.replace(worker, reason, now)

    def _is_replaced(self, number: int, lives: int) -> bool:
        """Returns True if a newer process of the worker runs, or the fleet no longer has it."""
        found = [worker for worker in self._fleet.workers if worker.number == number]
        return not found or (found[0].lives > lives and found[0].running)
