"""Calls that may block, on threads of their own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def aside(call: Callable[[], T]) -> Future[T]:
    """Starts a call on a daemon thread; returns its future."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - the top of a thread; raised where it is asked
            future.set_exception(error)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return future
