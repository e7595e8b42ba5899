"""What kworker runs in the benchmark. The first call notes its time, which all processes share."""

import os
import time
from pathlib import Path

from kworker import Message

WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0.010"))

_begun = False


def no_op(_: Message) -> None:
    """Costs nothing."""
    if not _begun:
        _begin()


def result(message: Message) -> dict:
    """A small result for each record."""
    if not _begun:
        _begin()
    return {"seen": message.offset}


def decoded(message: Message) -> dict:
    """The record decoded from JSON, and a result made of it."""
    if not _begun:
        _begin()
    order = message.json()
    return {"order_id": order["order_id"], "total": order["total"]}


def wait(_: Message) -> None:
    """Stands for a call to a service that takes that long."""
    if not _begun:
        _begin()
    time.sleep(WAIT_S)


def called(message: Message) -> dict:
    """A small result after such a call."""
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
