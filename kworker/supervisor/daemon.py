"""`start --daemon`: a supervisor without a terminal, and a launcher that waits for it."""

import os
import select
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kworker.errors import ExitCode, KworkerError

_TAIL_BYTES = 4096
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class DaemonReady:
    """All workers have joined."""

    pid: int


@dataclass(frozen=True, slots=True)
class DaemonWaiting:
    """The time was over before it was ready; it goes on."""


@dataclass(frozen=True, slots=True)
class DaemonExited:
    """It ended before it was ready; `last_lines` are its last."""

    exit_code: int
    last_lines: str


def launch(
    serve: Callable[[int], int], log: Path, timeout_s: float
) -> DaemonReady | DaemonWaiting | DaemonExited:
    """Runs `serve` in a process of its own, with the descriptor that hears of readiness.

    Called before anything else is started: what is open now, the daemon has too.
    """
    log_begins = log.stat().st_size if log.exists() else 0
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _detach(serve, log, theirs)
    os.close(theirs)
    os.waitpid(child, 0)
    words = _read_first_line(ours, timeout_s)
    os.close(ours)
    match words:
        case ["ready", pid]:
            return DaemonReady(int(pid))
        case ["exit", code]:
            return DaemonExited(int(code), _tail(log, log_begins))
        case []:
            return DaemonWaiting()
    # Killed, or it would have left a word.
    return DaemonExited(ExitCode.FAILURE, _tail(log, log_begins))


def write_line(fd: int, line: str) -> None:
    """Tells the launcher, who may have gone away."""
    try:
        os.write(fd, f"{line}\n".encode())
    except OSError:
        pass


def _detach(serve: Callable[[int], int], log: Path, ready_fd: int) -> None:
    """In the first child: a session without a terminal, and a process that can never get one."""
    try:
        os.setsid()
        if os.fork() == 0:
            _redirect(log)
            code = _code(serve, ready_fd)
            write_line(ready_fd, f"exit {code}")
            os._exit(code)
    finally:
        os._exit(0)


def _code(serve: Callable[[int], int], ready_fd: int) -> int:
    try:
        return serve(ready_fd)
    except KworkerError as error:
        print(f"kworker: {error}", file=sys.stderr)
        return error.exit_code
    except BaseException:  # noqa: BLE001 - the top of a process
        traceback.print_exc()
        return ExitCode.FAILURE
    finally:
        sys.stderr.flush()


def _redirect(log: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for fd, onto in ((null, 0), (file, 1), (file, 2)):
        os.dup2(fd, onto)
    os.close(null)
    os.close(file)


def _read_first_line(fd: int, timeout_s: float) -> list[str]:
    """The daemon's first line, in words; [] after the time, ["end"] when it is gone without one."""
    deadline = time.monotonic() + timeout_s
    if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
        return []
    line = os.read(fd, 64).decode().splitlines()
    return line[0].split() if line else ["end"]


def _tail(log: Path, begins: int) -> str:
    """The last lines written since the launch."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begins, size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
