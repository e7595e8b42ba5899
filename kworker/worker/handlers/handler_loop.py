"""The thread with the event loop of `async def` handlers."""

import asyncio
import sys
import threading
import time
from asyncio import base_events, events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, thread
from contextlib import suppress
from math import inf
from multiprocessing.util import register_after_fork
from types import FrameType
from typing import Any, NoReturn, TypeVar

import structlog

NewLoop = Callable[[], asyncio.AbstractEventLoop]
try:
    import uvloop
except ImportError:  # it is an extra
    NEW_LOOP: NewLoop = asyncio.new_event_loop
else:
    NEW_LOOP = uvloop.new_event_loop

_LOG = structlog.get_logger()

_LOG_EVERY_S = 10.0
_Returned = TypeVar("_Returned")
_Item = TypeVar("_Item")
Begin = Callable[[deque[_Item]], Coroutine[Any, Any, None]]
# What calls callbacks on the loop, and functions in threads beside it; uvloop has no frames.
_CALLERS = {__file__, *(module.__file__ for module in (base_events, events, thread, threading))}


class HandlerLoop:
    """A thread with an event loop, uvloop's if that is installed, that runs handlers' coroutines.

    After `stop`, functions that are passed to `call` are not called any more, but coroutines that
    run go on. `end` cancels those that still run, and closes the loop. Owned by `Handlers`.
    """

    def __init__(self, new_loop: NewLoop = NEW_LOOP) -> None:
        self._loop = new_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_at = 0.0
        # True once `stop` or `end` was called: no coroutine is started any more. Read on the loop.
        self.stopped = False
        self._ending = False
        self._ended = False  # written on the loop
        self._thread = threading.Thread(target=self._serve, name="handlers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls `function` in the next turn of the loop, unless stopped. Called by any thread."""
        self._loop.call_soon_threadsafe(self._call, function, arguments)

    def call_anyway(self, function: Callable[[], None]) -> None:
        """Calls `function` as `call` does, also after `stop`; not once the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def run(self, function: Callable[[], Awaitable[_Returned]]) -> "Future[_Returned]":
        """Awaits what `function` returns, on the loop. Called by any thread.

        Unlike `call`, this also works after `stop`. `end` cancels what is still awaited.
        """

        async def awaited() -> _Returned:
            return await function()

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop)

    def spawn(
        self,
        begin: Begin[_Item],
        items: deque[_Item],
        most: float = inf,
        then: Callable[[], None] | None = None,
    ) -> bool:
        """Starts a coroutine for each item, but not more than `most`; returns True if it did.

        The coroutine must take one of `items` before it awaits anything; if another one has left
        none, it ends. It must catch every exception of what it runs. It calls `hold` at its begin,
        and `release` at its end. Calls `then` once each has begun, except those that were cancelled
        before: a handler may cancel every task of the loop. Without `then`, starts others for what
        those have left. Called on the loop's thread only. Does nothing once the loop is stopped.
        """
        wanted = int(min(len(items), most))
        if self.stopped or not wanted:
            return False
        for _ in range(wanted):
            self._loop.create_task(begin(items))
        if then is None:
            self._loop.call_soon(self.spawn, begin, items)
        else:
            self._loop.call_soon(then)
        return True

    def hold(self) -> "asyncio.Task[None]":
        """Returns the running task, and keeps it: the loop itself has only weak references."""
        task: asyncio.Task[None] = asyncio.current_task(self._loop)  # type: ignore[assignment]
        self._tasks.add(task)
        return task

    def release(self, task: "asyncio.Task[None]") -> None:
        """Forgets a task that `hold` has returned, because it ends now."""
        self._tasks.discard(task)

    def running_task(self) -> "asyncio.Task[Any] | None":
        """Returns the task that the loop runs now; None if it rests or runs a plain callback."""
        return asyncio.current_task(self._loop)

    def frame(self) -> FrameType | None:
        """Returns the innermost frame that the loop's thread is in; None if it has ended."""
        return sys._current_frames().get(self._thread.ident or 0)

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        """Makes a child that a handler has just forked call `end` once the handler ends or awaits.

        Nothing else may run in the child. So `end` is not scheduled on the loop, which would run
        other callbacks first. Called in the child, by the thread that forked it.
        """
        called = _outermost_called(sys._getframe())

        def end_after(frame: FrameType, event: str, _: object) -> None:
            if frame is called and event == "return":  # a coroutine that awaits returns, too
                end()

        sys.setprofile(end_after)
        # A child of multiprocessing never comes back, and would compute slowly while profiled.
        register_after_fork(self, lambda _: sys.setprofile(None))

    def stop(self) -> None:
        """Makes the loop call no further function that was, or will be, passed to `call`.

        Called by any thread.
        """
        self.stopped = True

    def end(self) -> None:
        """Ends the thread, which closes the loop; does not block. Called by any thread.

        The thread does not end while a handler blocks the loop.
        """
        self.stop()
        if self._ending:
            return
        self._ending = True
        if self._thread.ident is None:
            self._loop.close()
        else:
            self._loop.call_soon_threadsafe(self._end)

    def join(self, timeout_s: float) -> None:
        """Waits until the thread has ended, for `timeout_s` at most."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _call(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if not self.stopped:
            function(*arguments)

    def _end(self) -> None:
        self._ended = True
        self._loop.stop()

    def _serve(self) -> None:
        # On leaving, a runner cancels the tasks that are left, and closes the loop.
        with asyncio.Runner(loop_factory=lambda: self._loop):
            asyncio.set_event_loop(self._loop)
            while not self._ended:
                try:
                    self._loop.run_forever()
                except BaseException as raised:  # noqa: BLE001 - a task may call sys.exit
                    cause = f"raised {type(raised).__name__}"
                else:
                    cause = "stopped it"
                if not self._ended:
                    self._log_stop(cause)

    def _log_stop(self, cause: str) -> None:
        if (now := time.monotonic()) >= self._log_at:
            self._log_at = now + _LOG_EVERY_S
            _LOG.warning(
                "a task or callback that a handler started has ended the handlers' event loop"
                f" ({cause}); the loop is started again"
            )


def _outermost_called(innermost: FrameType) -> FrameType:
    """Returns the frame of the function that the loop, or a thread of an executor, has called.

    That is the outermost frame outside of asyncio, its executor, `threading` and this module.
    """
    called, frame = innermost, innermost.f_back
    while frame is not None:
        if frame.f_code.co_filename not in _CALLERS:
            called = frame
        frame = frame.f_back
    return called
