"""The thread with the event loop of `async def` handlers."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn

import structlog

_LOG = structlog.get_logger()

_LOG_EVERY_S = 10.0


class HandlerLoop:
    """A thread with an asyncio event loop that runs the coroutines of handlers.

    After `stop` no further coroutine begins, and the running ones are left suspended.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_at = 0.0
        self._stopped = False  # written by `stop`, before the loop is stopped
        self._thread = threading.Thread(target=self._serve, name="handlers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(self, function: Callable[[Any], None], argument: Any) -> None:
        """Calls `function(argument)` on the loop. Called by any thread."""
        self._loop.call_soon_threadsafe(self._call, function, argument)

    def spawn(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts the coroutine that `begin` makes, which must catch every exception.

        Called on the loop's thread only.
        """
        task = self._loop.create_task(begin())
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(partial(self._after_task, begin))

    def _after_task(
        self, begin: Callable[[], Coroutine[Any, Any, None]], task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        # A handler that cancels every task of the loop cancels some that have not begun.
        if task.cancelled() and not self._stopped:
            self.spawn(begin)

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        """Makes the loop of a forked child call `end` before any other coroutine runs there."""
        # Callbacks of the loop's present round would run before a `call_soon`.
        getattr(self._loop, "_ready", deque[Any]()).clear()
        self._loop.call_soon(end)

    def stop(self) -> None:
        """Stops the loop; does not block. Called by any thread."""
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _call(self, function: Callable[[Any], None], argument: Any) -> None:
        # A coroutine made in the loop's last round would never be awaited.
        if not self._stopped:
            function(argument)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopped:
            try:
                self._loop.run_forever()
            except BaseException as raised:  # noqa: BLE001 - a task of a handler's may call sys.exit
                cause = f"raised {type(raised).__name__}"
            else:
                cause = "stopped it"
            if not self._stopped:
                self._log_stop(cause)

    def _log_stop(self, cause: str) -> None:
        if (now := time.monotonic()) >= self._log_at:
            self._log_at = now + _LOG_EVERY_S
            _LOG.warning(
                f"a handler's task or callback interrupted the handlers' event loop ({cause});"
                " the loop continues"
            )
