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
from kworker.log import daemon_file

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class DaemonReady:
    """The result of a launch whose daemon became ready: all workers have joined."""

    pid: int


@dataclass(frozen=True, slots=True)
class DaemonWaiting:
    """The result of a launch whose daemon still runs, but was not ready in time."""


@dataclass(frozen=True, slots=True)
class DaemonExited:
    """The result of a launch whose daemon ended before it was ready, with its last log lines."""

    exit_code: int
    last_lines: str


def launch(
    serve: Callable[[int], int], log: Path, timeout_s: float
) -> DaemonReady | DaemonWaiting | DaemonExited:
    """Runs `serve` in a daemon process; its argument is the descriptor to report readiness to.

    Blocks for up to `timeout_s`. Must be called before files are opened or threads started,
    because the daemon inherits every open descriptor.
    """
    log_begins = log.stat().st_size if log.exists() else 0
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _detach(serve, log, write_end)
    os.close(write_end)
    os.waitpid(child, 0)
    words = _read_first_line(read_end, timeout_s)
    os.close(read_end)
    match words:
        case ["ready", pid]:
            return DaemonReady(int(pid))
        case ["exit", code]:
            return DaemonExited(int(code), _tail(log, log_begins))
        case []:
            return DaemonWaiting()
    # The daemon was killed, or it would have written its exit code.
    return DaemonExited(ExitCode.FAILURE, _tail(log, log_begins))


def write_line(fd: int, line: str) -> None:
    """Writes a line to the launcher's pipe; does nothing if the launcher has ended."""
    try:
        os.write(fd, f"{line}\n".encode())
    except OSError:
        pass


def _detach(serve: Callable[[int], int], log: Path, ready_fd: int) -> None:
    """Makes a session without a terminal, forks the daemon into this session, and exits.

    Runs in a child process of the launcher.
    """
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
    os.dup2(null, 0)
    os.close(null)
    daemon_file.open_as_output(log)
    os.environ[daemon_file.VARIABLE] = str(log.resolve())


def _read_first_line(fd: int, timeout_s: float) -> list[str]:
    """Returns the daemon's first line as words; [] after the time-out, ["end"] at end of file."""
    deadline = time.monotonic() + timeout_s
    if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
        return []
    line = os.read(fd, 64).decode().splitlines()
    return line[0].split() if line else ["end"]


def _tail(log: Path, begins: int) -> str:
    """Returns the last lines that were written to the log since the launch.

    `begins` is the size that the log had at the launch.
    """
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        begins = begins if begins <= size else 0  # it was rotated
        position = file.seek(max(begins, size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines if position == begins else lines[1:])
