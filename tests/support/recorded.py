"""The handlers' ledger: a line when a handler begins, one when it ends or raises."""

import functools
import os
import time
from collections.abc import Awaitable, Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kworker import BatchFailed, Message

FOLDER = "PROOF_LEDGER"
BEGUN, ENDED, RAISED = "S", "E", "R"

Handle = Callable[[Message], Any]
BatchHandle = Callable[[list[Message]], list[Any]]
AsyncHandle = Callable[[Message], Awaitable[Any]]


def recorded(handle: Handle) -> Handle:
    """A handler whose every run is in the ledger, wherever it is cut off."""

    @functools.wraps(handle)
    def handling(message: Message) -> Any:
        write(BEGUN, message)
        try:
            returned = handle(message)
        except BaseException:
            write(RAISED, message)
            raise
        write(ENDED, message)
        return returned

    return handling


def recorded_async(handle: AsyncHandle) -> AsyncHandle:
    """The same for `async def`."""

    @functools.wraps(handle)
    async def handling(message: Message) -> Any:
        write(BEGUN, message)
        try:
            returned = await handle(message)
        except BaseException:
            write(RAISED, message)
            raise
        write(ENDED, message)
        return returned

    return handling


def recorded_batch(handle: BatchHandle) -> BatchHandle:
    """The same for a batch: a run of each record, which ends with what is returned for it."""

    @functools.wraps(handle)
    def handling(messages: list[Message]) -> list[Any]:
        for message in messages:
            write(BEGUN, message)
        try:
            returned = handle(messages)
        except BatchFailed as failed:
            _write_ends(messages, failed.results or [])
            raise
        except BaseException:
            _write_ends(messages, [])
            raise
        _write_ends(messages, returned)
        return returned

    return handling


def _write_ends(messages: list[Message], ends: list[Any]) -> None:
    """Those without an end, or with an exception for one, were not done."""
    for message, end in zip_longest(messages, ends, fillvalue=RuntimeError()):
        write(RAISED if isinstance(end, BaseException) else ENDED, message)


def write(what: str, message: Message) -> None:
    """One line, one append: what another thread or a kill does cannot tear it."""
    key = "" if message.key is None else message.key.hex()
    place = f"{message.topic}\t{message.partition}\t{message.offset}"
    line = f"{what}\t{place}\t{message.attempt}\t{key}\t{time.time_ns()}\n"
    os.write(_file(os.getpid()), line.encode())


@functools.cache
def _file(pid: int) -> int:
    """The file of this process, and of no other that had its pid before."""
    folder = Path(os.environ[FOLDER])
    born = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    return os.open(folder / f"{pid}-{born}.handler", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
