"""The handlers of the benchmark. The first call in any process writes its time to a file."""

import asyncio
import inspect
import itertools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kworker import Message

WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.010"))
SLOW, SLOW_S = b"00", 0.5  # the end of the keys of the slow records: one of a hundred
COMPUTE_S = 200e-6
RANDOM_S = 0.005
PROBE_TOTAL, PROBE_S = -1, 1.0  # of an order that takes long
HOT_KEY = b"customer-hot"
REST = int(os.environ.get("BENCH_REST", "0"))
MARK_EACH = int(os.environ.get("BENCH_MARK_EACH", "0"))
"""With it, a mark is written before each so many calls of the handler, in each process."""

_begun = False
_marks = -1  # the file of the marks
_others = 0  # the records that ended, without the slow ones or those of the hot key


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


async def wait_slow(message: Message) -> None:
    """Takes 10 ms, but 500 ms for one of a hundred; the time of the others is told apart."""
    if not _begun:
        _begin()
    if (message.key or b"").endswith(SLOW):
        await asyncio.sleep(SLOW_S)
    else:
        await asyncio.sleep(WAIT_S)
        _end_other()


async def wait_hot(message: Message) -> None:
    """Takes 10 ms; the time of all keys but the hot one is told apart."""
    if not _begun:
        _begin()
    await asyncio.sleep(WAIT_S)
    if message.key != HOT_KEY:
        _end_other()


def compute(_: Message) -> None:
    """Computes for 200 microseconds of this thread's CPU time."""
    if not _begun:
        _begin()
    until = time.thread_time() + COMPUTE_S
    while time.thread_time() < until:
        pass


def wait_random(_: Message) -> None:
    """Sleeps between 0 and 5 ms, as in the table that Parallel Consumer publishes."""
    if not _begun:
        _begin()
    time.sleep(random.random() * RANDOM_S)


def probed(message: Message) -> dict:
    """As `decoded`, but one order takes long: do the others wait for it?"""
    result = decoded(message)
    if result["total"] == PROBE_TOTAL:
        time.sleep(PROBE_S)
    return result


async def probed_async(message: Message) -> dict:
    """The same, on an event loop."""
    result = decoded(message)
    if result["total"] == PROBE_TOTAL:
        await asyncio.sleep(PROBE_S)
    return result


def located(message: Message) -> dict:
    """As `called`, with the process that handles the record."""
    return {**called(message), "process": os.getpid()}


def called(message: Message) -> dict:
    """As `decoded`, after a call to a service."""
    wait(message)
    return decoded(message)


async def called_async(message: Message) -> dict:
    """The same, on an event loop."""
    await wait_async(message)
    return decoded(message)


def _begin() -> None:
    global _begun
    _begun = True
    _write_time("BENCH_BEGUN")


def _end_other() -> None:
    global _others
    _others += 1
    if _others == REST:
        _write_time("BENCH_REST_ENDED")


def _write_time(variable: str) -> None:
    try:
        with Path(os.environ[variable]).open("x") as file:
            file.write(str(time.monotonic()))
    except FileExistsError:
        pass  # another thread or process was first


def _marked(handler: Callable[[Message], Any]) -> Callable[[Message], Any]:
    """Returns the handler, with a mark before each MARK_EACH calls."""
    next_number = itertools.count(1).__next__

    def marked(message: Message) -> Any:
        if next_number() % MARK_EACH == 0:
            _mark()
        return handler(message)

    async def marked_async(message: Message) -> Any:
        return await marked(message)

    return marked_async if inspect.iscoroutinefunction(handler) else marked


def _mark() -> None:
    """Writes the monotonic time and the process' CPU time, both in ns, as a line of its own."""
    global _marks
    if _marks < 0:
        path = f"{os.environ['BENCH_MARKS']}.{os.getpid()}"
        _marks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_marks, b"%d %d\n" % (time.monotonic_ns(), time.process_time_ns()))


if MARK_EACH:
    for _handler in (no_op, result, decoded, wait, wait_async, compute):
        globals()[_handler.__name__] = _marked(_handler)
