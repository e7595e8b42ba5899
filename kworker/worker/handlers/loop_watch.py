"""The watch over the handlers' event loop: finds the code that blocks it, and names the line."""

import asyncio
import sysconfig
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from kworker.worker.handlers import handler_loop
from kworker.worker.handlers.handler_loop import HandlerLoop

_LOG = structlog.get_logger()

LOOK_EVERY_S = 0.25
BLOCKED_S = 1.0  # in one step of one task
AGAIN_S = 60.0  # after which a line of code is named again
_GAP_S = 0.5  # longer, and this thread was suspended itself
_PLACES_MOST = 100
_KWORKER = f"{Path(__file__).parents[2]}/"
_PYTHON = ("<frozen", *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")))
_INSTALLED = ("/site-packages/", "/dist-packages/")


class LoopWatch:
    """Detects that one task blocks the event loop, and logs where; owned by the poll thread.

    While handlers run, the watch schedules a callback on the loop, at most one every `LOOK_EVERY_S`
    seconds. If the callback is late, and one and the same task runs for `BLOCKED_S` seconds, the
    watch logs where that task is. A loop that is late because many tasks have work for it is not
    blocked.
    """

    def __init__(self, loop: HandlerLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._turned_at = self._look_at = 0.0
        self._answered = True  # written on the loop's thread
        self._running: _RunningTask | None = None  # while there is no answer
        self._again_at: dict[str, float] = {}  # by place: when it may be named again

    def turn(self, *, has_work: bool) -> None:
        """Checks the event loop, at most every `LOOK_EVERY_S` seconds; logs where it is blocked.

        Called at each turn of the poll thread. `has_work` is True while handlers run.
        """
        now = self._clock()
        suspended = now - self._turned_at > _GAP_S
        self._turned_at = now
        if suspended:
            self._running = None
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        if not self._answered:
            self._look(now)
        elif has_work:
            self._running = None
            self._answered = False
            self._loop.call(self._answer)

    def _answer(self) -> None:
        self._answered = True

    def _look(self, now: float) -> None:
        task = self._loop.running_task()
        if self._running is None or self._running.task() is not task:
            self._running = _RunningTask(weakref.ref(task) if task else _no_task, now)
        elif not self._running.told and now - self._running.since >= BLOCKED_S:
            self._running = replace(self._running, told=True)
            self._tell(now, now - self._running.since)

    def _tell(self, now: float, lasted_s: float) -> None:
        place = blocking_place(self._loop.frame())
        if not place or now < self._again_at.get(place, 0.0):
            return
        if len(self._again_at) >= _PLACES_MOST:
            self._again_at.clear()
        self._again_at[place] = now + AGAIN_S
        _LOG.warning(
            f"{place} has blocked the event loop for {lasted_s:.1f} s: all other records of this"
            " process wait until it is done; use await asyncio.sleep() or await"
            " asyncio.to_thread()"
        )


@dataclass(frozen=True, slots=True)
class _RunningTask:
    """The task that runs while the loop is late with the watch's callback.

    `since` is when the task was first seen. `told` is True once the task has been logged.
    """

    task: Callable[[], "asyncio.Task[Any] | None"]  # a weak reference
    since: float
    told: bool = False


def _no_task() -> None:
    """Stands for the weak reference to the running task when the loop runs no task."""


def blocking_place(innermost: FrameType | None) -> str:
    """Returns file, line and function of the user's code that runs; "" if none runs.

    This is the innermost frame whose file is not of kworker, Python or an installed package. If
    the handler itself is in an installed package, there may be no such frame. Then the outermost
    frame in an installed package is returned, which is the handler's.
    """
    handlers = None
    for frame in _outwards(innermost):
        file = frame.f_code.co_filename
        if file == handler_loop.__file__:  # beyond is what started the thread
            break
        if file.startswith(_KWORKER):
            continue
        if any(folder in file for folder in _INSTALLED):
            handlers = frame
        elif not file.startswith(_PYTHON):
            return _place(frame)
    return _place(handlers) if handlers else ""


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
