"""The state folder of one instance: the locks in it, who holds them, and its paths."""

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kworker.errors import AlreadyRunning, ConfigError

_LOCK_TRIES_S = 0.5  # a `kworker stop` that looks whether it is held takes it for an instant
_SUN_PATH_MAX = 107


class StateFolder:
    """`state_dir`: made private, locked by one supervisor, its workers' lock shared by them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / "control.sock"
        self.log = path / "kworker.log"
        self.marks = path / "marks"
        self.suspects = path / "suspects"
        self.rejected = path / "rejected"
        self.spark_progress = path / "spark" / "progress.json"
        self._lock = path / "lock"
        self._workers_lock = path / "workers.lock"

    def make(self) -> None:
        """Creates the folder and closes it to others; ConfigError when that cannot be."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"state_dir: cannot use {self.path}: {error.strerror}") from None

    def lock(self) -> int:
        """Takes the instance until this process ends; AlreadyRunning names who has it."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LOCK_TRIES_S
        while not _try_flock(fd, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                os.close(fd)
                raise AlreadyRunning(
                    f"already running as pid {self._written_pid()} ({self.path}):"
                    " `kworker status` shows it, `kworker stop` ends it"
                )
            time.sleep(0.05)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def check_free(self) -> None:
        """AlreadyRunning when another supervisor has the instance; takes nothing."""
        os.close(self.lock())

    def supervisor_pid(self) -> int | None:
        """The process that holds the instance, or None; never a stale number from the file."""
        pid = self._written_pid()
        return pid if pid is not None and _has_open(pid, self._lock) else None

    def join_workers(self) -> int:
        """Called in each worker right after the fork: its share of the lock, until it ends."""
        fd = self._open_workers_lock()
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def workers_gone(self) -> bool:
        """Whether no worker of an earlier supervisor lives; asked before the first fork."""
        fd = self._open_workers_lock()
        try:
            return _try_flock(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)

    def leftover_workers(self) -> list[int]:
        """The workers that `workers_gone` missed, by pid."""
        return [pid for pid in _pids() if _has_open(pid, self._workers_lock)]

    def _open_workers_lock(self) -> int:
        return os.open(self._workers_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _written_pid(self) -> int | None:
        try:
            return int(self._lock.read_text())
        except (OSError, ValueError):
            return None


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """An address for a Unix socket at `path`, which may be longer than such addresses can be."""
    if len(os.fsencode(path)) <= _SUN_PATH_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path, timeout_s: float) -> socket.socket:
    """A connection to the control socket at `path`; OSError when nobody listens in that time."""
    peer = socket.socket(socket.AF_UNIX)
    # Not `settimeout`, with which a full queue is an error at once instead of a wait.
    wait = struct.pack("@ll", int(timeout_s), 0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
    try:
        with short_address(path) as address:
            peer.connect(address)
    except BlockingIOError:
        peer.close()
        raise TimeoutError from None
    except OSError:
        peer.close()
        raise
    peer.settimeout(timeout_s)
    return peer


def _try_flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has_open(pid: int, path: Path) -> bool:
    """Whether the process has this very file open; False for one that is gone or not ours."""
    try:
        wanted = path.stat()
        return any(
            os.path.samestat(wanted, found)
            for name in os.listdir(f"/proc/{pid}/fd")
            if (found := _stat(f"/proc/{pid}/fd/{name}"))
        )
    except OSError:
        return False


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None
