"""The log file of `kworker start --daemon`, in all processes of the service.

The processes inherit descriptors 1 and 2, and go on writing to a file that is renamed. So each
process looks once a second whether another file has the log file's name, and if so opens that one
instead. The supervisor does the same for files that another program moves (logrotate), and renames
the file itself when it is large. Nothing is copied or cut, so no line is lost; but for up to a
second after a renaming, lines still go to the renamed file. The console process looks only every
five seconds, so its lines may go to the renamed file for that long. Writes are appended, a whole
line each, so they do not mix. A pipe to one writer would cut lines over 4 KiB.

A program that a process has started keeps the file it was given, until it ends: the JVM of Spark,
and what handlers start.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from kworker.config.model import LogSettings

VARIABLE = "KWORKER_DAEMON_LOG"
"""The environment variable with the file's path, in the daemon and its children."""
_LOOK_EVERY_S = 1.0
_STREAMS = (1, 2)


def open_as_output(path: Path) -> None:
    """Makes a file the standard output and standard error of this process. Raises OSError."""
    _replace(_STREAMS, path)


class DaemonFile:
    """Keeps standard output and error in whatever file has the name of the daemon's log now.

    Does nothing if the service was not started as a daemon. Owned by the thread that calls `turn`.
    The descriptors are replaced at once for all threads.
    """

    def __init__(self) -> None:
        path = os.environ.get(VARIABLE, "")
        # A service that a handler starts inherits the variable, too, but logs elsewhere.
        self.path = Path(path) if path and _was_called(path) else None
        self._look_at = 0.0

    def turn(self, now: float) -> None:
        """Once a second, opens the file that has the log's name now, unless it is open already."""
        if self.path is not None and now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self.follow(self.path)

    def follow(self, path: Path) -> None:
        """Sends this process's output to the file at `path`, unless it goes there already."""
        try:
            here = os.fstat(2)
            if not _is(path, here):
                _replace([fd for fd in _STREAMS if os.path.samestat(os.fstat(fd), here)], path)
        except OSError:  # no folder, or no right: the lines go on where they went
            pass


class RotatedFile:
    """The daemon's log file, as the supervisor rotates it: renames it when it is large."""

    def __init__(self) -> None:
        self._file = DaemonFile()
        self._look_at = 0.0

    def turn(self, now: float, log: LogSettings) -> None:
        """Once a second, renames the file if it has `log.rotate` bytes or more.

        Then opens the file that has the name now, unless the process writes to it already.
        """
        if self._file.path is None or now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        try:
            if log.rotate and _is_full(self._file.path, log.rotate):
                _rename(self._file.path, log.keep)
        except OSError:  # no right to rename: the file grows, and all else goes on
            pass
        self._file.follow(self._file.path)


def _was_called(path: str) -> bool:
    """Returns True if standard error is the file of this name, or a file that had this name.

    A renamed file has a longer name, `kworker.log.1` or `kworker.log-20260101`.
    """
    try:
        return os.readlink("/proc/self/fd/2").startswith(path)
    except OSError:
        return False


def _is(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), status)
    except FileNotFoundError:  # moved, and none made in its place
        return False


def _is_full(path: Path, size_max: int) -> bool:
    """Returns True if standard error is the file of this name, with `size_max` bytes or more."""
    status = os.fstat(2)
    return stat.S_ISREG(status.st_mode) and status.st_size >= size_max and _is(path, status)


def _rename(path: Path, keep: int) -> None:
    """Renames `NAME.1` to `NAME.2` and so on, then the file to `NAME.1`; replaces `NAME.<keep>`."""
    names = [path, *(path.with_name(f"{path.name}.{age}") for age in range(1, keep + 1))]
    for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
        if newer.exists():
            newer.replace(older)


def _replace(fds: Sequence[int], path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for fd in fds:
            os.dup2(file, fd)
    finally:
        os.close(file)
