"""The lease on a folder of checkpoints: two jobs on one checkpoint would corrupt it."""

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from kworker.spark.checkpoints.folders import local_folder


class LeaseHolder(NamedTuple):
    """The job that took the lease, and its JVM, once that runs."""

    pid: int
    host: str
    jvm: int | None

    @property
    def gone(self) -> bool:
        """True if the job ran on this host and has ended, so that only its JVM has the lease."""
        return self.host == socket.gethostname() and not psutil.pid_exists(self.pid)

    def __str__(self) -> str:
        if not self.gone:
            return f"process {self.pid} on {self.host}"
        if self.jvm is None:
            return f"the JVM of process {self.pid} on {self.host}, which is gone,"
        return f"process {self.jvm} on {self.host}, the JVM of a job that is gone,"


class Lease:
    """A file lock, `<checkpoints>/.lease`, that lets only one job write these checkpoints.

    This process holds the lock, and so does its JVM, which inherits `descriptors`: after a kill of
    the process, the JVM may still write for a moment. Only a local folder can be locked; for any
    other, `take` always succeeds. The leader election in the jobs' consumer group also excludes
    jobs on other hosts or with other folders.
    """

    def __init__(self, checkpoints: str) -> None:
        self.checkpoints = checkpoints
        self._folder = local_folder(checkpoints)
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """Takes the lease if it is free; never blocks. OSError if the folder cannot be created."""
        if self._folder is None or self._file is not None:
            return True
        self._folder.mkdir(parents=True, exist_ok=True)
        file = (self._folder / ".lease").open("a+")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        self._note()
        return True

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The file descriptors that a child process inherits to hold the lease as well."""
        return () if self._file is None else (self._file.fileno(),)

    def share(self, pid: int) -> None:
        """Records the child process `pid` in the lease's file, as a second holder."""
        self._note(jvm=pid)

    def _note(self, **more: int) -> None:
        if self._file is not None:
            self._file.truncate(0)
            fields = {"pid": os.getpid(), "host": socket.gethostname(), **more}
            self._file.write(json.dumps(fields))
            self._file.flush()

    def release(self) -> None:
        """Gives up the lease before this process ends."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def holder(self) -> LeaseHolder | None:
        """Reads from the lease's file which job took the lease; None if the file is unreadable."""
        try:
            fields = json.loads(((self._folder or Path()) / ".lease").read_text())
            return LeaseHolder(int(fields["pid"]), str(fields["host"]), fields.get("jvm"))
        except (OSError, ValueError, TypeError, KeyError):
            return None
