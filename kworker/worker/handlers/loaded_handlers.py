"""The handlers of one process: found by topic, opened and closed on their event loop."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kworker.message import Message
from kworker.worker.handlers.handler_loop import HandlerLoop
from kworker.worker.handlers.signature import Batching, Call

OnDead = Callable[[Message, BaseException], Any]
CLOSE_S = 5.0  # for an `async def close`
ALIVE_EVERY_S = 1.0
_JOIN_S = 1.0


@dataclass(frozen=True)
class Handler:
    """A handler that the configuration names: a function, or an instance of a class."""

    name: str
    call: Call  # of a batch handler: a batch of one
    is_async: bool
    close: Callable[[], Any] | None = None  # may be a coroutine function, of an async handler
    dead: OnDead | None = (
        None  # called before a dead letter; of an async handler, it may return an awaitable
    )
    batching: Batching | None = None
    open: Callable[[], Awaitable[Any]] | None = None  # of an async handler


class Handlers:
    """The handlers of one process, each found by the source topic of its records.

    Owns the event loop of `async def` handlers, from `open` to `close`.
    """

    def __init__(self, default: Handler | None, routes: Mapping[str, Handler]) -> None:
        self._default = default
        self._routes = routes
        self._all = [*routes.values(), *([default] if default else [])]

    @property
    def is_async(self) -> bool:
        return self._all[0].is_async

    @cached_property
    def loop(self) -> HandlerLoop:
        """The event loop of `async def` handlers; `def` handlers need none."""
        return HandlerLoop()

    @property
    def only(self) -> Call | None:
        """The function that calls the only handler; None if several are chosen by topic."""
        return self._all[0].call if len(self._all) == 1 else None

    @property
    def batchings(self) -> set[Batching]:
        """The settings of all batch handlers."""
        return {handler.batching for handler in self._all if handler.batching}

    @property
    def has_on_dead(self) -> bool:
        """True if a handler has a `dead` method, to be called before a dead letter is written."""
        return any(handler.dead for handler in self._all)

    def of(self, topic: str) -> Call:
        """Returns the function that calls a topic's handler. Raises KeyError if there is none."""
        handler = self._routes.get(topic, self._default)
        if handler is None:
            raise KeyError(topic)
        return handler.call

    def batching_of(self, topic: str) -> Batching | None:
        """Returns the batch settings of a topic's handler; None if it takes single records."""
        handler = self._routes.get(topic, self._default)
        return handler.batching if handler else None

    def on_dead_of(self, topic: str) -> OnDead | None:
        """Returns the `dead` method of a source topic's handler.

        Returns None if the handler has no such method, or if the topic has no handler. A topic
        without a handler occurs if another program wrote a record to the requeue topic.
        """
        handler = self._routes.get(topic, self._default)
        return handler.dead if handler else None

    def open(self, timeout_s: float, alive: Callable[[], None] = lambda: None) -> "Future[None]":
        """Starts the event loop of `async def` handlers, which awaits each handler's method `open`.

        Returns a future that ends when all these methods have returned. Called after the fork,
        before the first record. If a handler's `open` raises, or takes longer than `timeout_s`, the
        handlers opened before it are closed, the loop ends, and the future gets the exception.

        While a handler's `open` is awaited, the loop calls `alive` every second, but only until
        `timeout_s` has passed. It cannot call `alive` while `open` blocks the loop.
        """
        opened: Future[None] = Future()
        if self.is_async:
            self.loop.start()
            opened = self.loop.run(lambda: self._open(timeout_s, alive))
            opened.add_done_callback(lambda _: self.abandon() if opened.exception() else None)
        else:
            opened.set_result(None)
        return opened

    def close(self) -> None:
        """Closes every handler at the end of a drain, and then the event loop.

        Raises what a handler's `close` raises. An `async def close` has `CLOSE_S` seconds at most.
        """
        with ExitStack() as ending:
            if self.is_async:
                ending.callback(self.loop.join, _JOIN_S)
            ending.callback(self.abandon)
            for close in self._closes:
                ending.callback(self._close, close)

    def abandon(self) -> None:
        """Ends the event loop, if there is one, without closing the handlers. Does not block."""
        if self.is_async:
            self.loop.end()

    @property
    def _closes(self) -> list[Callable[[], Any]]:
        return [close for handler in dict.fromkeys(self._all) if (close := handler.close)]

    async def _open(self, timeout_s: float, alive: Callable[[], None]) -> None:
        async with AsyncExitStack() as opened:
            for handler in dict.fromkeys(self._all):
                if handler.open:
                    await _opened(handler.open, timeout_s, alive)
                if handler.close:
                    opened.push_async_callback(_awaited, handler.close)
            opened.pop_all()

    def _close(self, close: Callable[[], Any]) -> None:
        if inspect.iscoroutinefunction(close):
            closing = self.loop.run(lambda: _limited("close", close, CLOSE_S))
            closing.result(CLOSE_S + _JOIN_S)  # a handler may block the loop
        else:
            close()


async def _opened(
    opening: Callable[[], Awaitable[Any]], limit_s: float, alive: Callable[[], None]
) -> None:
    until = asyncio.get_running_loop().time() + limit_s
    living = asyncio.create_task(_show_life(alive, until))
    try:
        await _limited("open", opening, limit_s)
    finally:
        living.cancel()


async def _show_life(alive: Callable[[], None], until: float) -> None:
    """Calls `alive` every second until the event loop's clock reaches `until`."""
    while asyncio.get_running_loop().time() < until:
        alive()
        await asyncio.sleep(ALIVE_EVERY_S)


async def _limited(name: str, function: Callable[[], Awaitable[Any]], limit_s: float) -> None:
    """Awaits a method of a handler. Raises TimeoutError if it takes longer than `limit_s`."""
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            await function()
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"{name}() did not end within {limit_s:g} s") from None


async def _awaited(close: Callable[[], Any]) -> None:
    called = close()
    if inspect.isawaitable(called):
        await called
