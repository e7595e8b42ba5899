"""The handlers of the benchmark. The first call in any process writes its time to a file."""

import asyncio
import os
import time
from pathlib import Path

from kworker import Message

WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.010"))

_begun = False


def no_op(_: Message) -> None:
    """Returns at once, without a result."""
    if not _begun:
        _begin()


def result(message: Message) -> dict:
    """Returns a small result for each record."""
    if not _begun:
        _begin()
    return {"seen": message.offset}


def decoded(message: Message) -> dict:
    """Decodes the record from JSON and returns a result made from it."""
    if not _begun:
        _begin()
    order = message.json()
    return {"order_id": order["order_id"], "total": order["total"]}


def wait(_: Message) -> None:
    """Sleeps, in place of a call to a service."""
    if not _begun:
        _begin()
    time.sleep(WAIT_S)


async def wait_async(_: Message) -> None:
    """The same, on an event loop."""
    if not _begun:
        _begin()
    await asyncio.sleep(WAIT_S)


def called(message: Message) -> dict:
    """Sleeps, then returns a small result."""
    wait(message)
    return {"seen": message.offset}


def _begin() -> None:
    global _begun
    _begun = True
    try:
        with Path(os.environ["BENCH_BEGUN"]).open("x") as file:
            file.write(str(time.monotonic()))
    except FileExistsError:
        pass  # another thread was first
