"""Starts, finds again and stops processes that outlive the command that starts them."""

import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

POLL_S = 0.05
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Process(BaseModel):
    """A process, identified by its pid and its start time, since a pid may be reused."""

    model_config = ConfigDict(frozen=True)
    pid: int
    started: int  # clock ticks since boot

    def alive(self) -> bool:
        """True while the process runs. Reaps it if it ended and is a child of this process."""
        if _started(self.pid) == self.started:
            return True
        try:
            os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            pass  # not a child: the command that started it is gone
        return False

    def signal(self, number: int) -> None:
        if self.alive():
            os.kill(self.pid, number)


def _started(pid: int) -> int | None:
    """The start time of a process, in clock ticks since boot; None if it has ended.

    A zombie counts as ended, but not while a thread of the process still runs: such a thread keeps
    the process's ports open.
    """
    try:
        # The name, in brackets, may hold anything, also blanks and brackets.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    threads, started = int(fields[16]), int(fields[18])
    return None if state in "ZX" and threads <= 1 else started


def start(command: list[str], output: Path) -> Process:
    """Starts a process in its own session, so that it outlives this process and its terminal."""
    output.parent.mkdir(parents=True, exist_ok=True)
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), write, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
    )
    return Process(pid=pid, started=_started(pid) or 0)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Blocks INT, TERM and HUP in the `with` block, so that each started server gets saved."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop(processes: Iterable[Process], timeout_s: float) -> None:
    """Sends TERM to all processes at once, and kills those that still run after `timeout_s`."""
    left = [process for process in processes if process.alive()]
    for process in left:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a stopped process receives no other signal
    if not all_gone(left, timeout_s):
        kill(left)


def kill(processes: Iterable[Process]) -> None:
    left = list(processes)
    for process in left:
        process.signal(signal.SIGKILL)
    all_gone(left, timeout_s=10.0)


def all_gone(processes: Iterable[Process], timeout_s: float) -> bool:
    left = list(processes)
    deadline = time.monotonic() + timeout_s
    while left := [process for process in left if process.alive()]:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a closed connection in TIME_WAIT does not keep a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def listener(port: int) -> str:
    """Describes, for an error message, the process that listens on a TCP port."""
    for connection in psutil.net_connections("tcp"):
        here = connection.laddr
        if connection.status == psutil.CONN_LISTEN and here and here.port == port:
            return f"process {connection.pid}" if connection.pid else "a process of another user"
    return "another process"
