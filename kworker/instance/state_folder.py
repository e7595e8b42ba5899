"""The state folder of one instance: its paths, its locks, and the processes that hold them."""

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kworker.errors import AlreadyRunning, ConfigError

_LOCK_TRIES_S = 0.5  # `check_free` in another process takes the lock for an instant
_SUN_PATH_MAX = 107


class StateFolder:
    """The private folder `state_dir`. Holds the supervisor's lock and a lock that workers share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / "control.sock"
        self.log = path / "kworker.log"
        self.marks = path / "marks"
        self.suspects = path / "suspects"
        self.rejected = path / "rejected"
        self.pauses = path / "pauses.json"
        self.spark_progress = path / "spark" / "progress.json"
        self._lock = path / "lock"
        self._workers_lock = path / "workers.lock"

    def make(self) -> None:
        """Creates the folder, readable by its owner alone. Raises ConfigError if that fails."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"state_dir: cannot use {self.path}: {error.strerror}") from None

    def lock(self) -> int:
        """Takes the supervisor's lock, which lasts until this process ends.

        Returns the file descriptor of the lock. Raises AlreadyRunning if another process has the
        lock.
        """
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
        """Raises AlreadyRunning if another supervisor has the lock; does not keep the lock."""
        os.close(self.lock())

    def supervisor_pid(self) -> int | None:
        """Returns the pid of the living process that has the supervisor's lock, or None."""
        pid = self._written_pid()
        return pid if pid is not None and _has_open(pid, self._lock) else None

    def join_workers(self) -> int:
        """Takes the workers' lock, which all workers share, until this worker ends.

        Called after the worker's fork. Returns the lock's file descriptor.
        """
        fd = self._open_workers_lock()
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def workers_gone(self) -> bool:
        """Returns True if no worker of an earlier supervisor lives. Called before any fork."""
        fd = self._open_workers_lock()
        try:
            return _try_flock(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)

    def leftover_workers(self) -> list[int]:
        """Returns the pids of the workers that still hold the workers' lock."""
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
    """Yields an address for the Unix socket at `path`, also if `path` exceeds 107 bytes."""
    if len(os.fsencode(path)) <= _SUN_PATH_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path, timeout_s: float) -> socket.socket:
    """Connects to the Unix socket at `path`.

    Raises TimeoutError if this takes longer than `timeout_s` seconds, and OSError if it fails.
    """
    peer = socket.socket(socket.AF_UNIX)
    # Not `settimeout`, with which a full queue is an error at once instead of a wait.
    wait = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1_000_000))
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
    """Returns True if the process has this file open, False if it has ended or cannot be seen."""
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
