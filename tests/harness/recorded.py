"""The handlers' ledger: a line when a handler begins, one when it ends or raises."""

import functools
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kworker import Message

FOLDER = "PROOF_LEDGER"
BEGUN, ENDED, RAISED = "S", "E", "R"

Handle = Callable[[Message], Any]
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
