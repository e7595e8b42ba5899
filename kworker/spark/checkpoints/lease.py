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
    """A job that took the lease, and the JVM that keeps it, once there is one."""

    pid: int
    host: str
    jvm: int | None

    @property
    def gone(self) -> bool:
        """The job is, as far as it can be seen from this host: what is left of it is its JVM."""
        return self.host == socket.gethostname() and not psutil.pid_exists(self.pid)

    def __str__(self) -> str:
        if not self.gone:
            return f"process {self.pid} on {self.host}"
        if self.jvm is None:
            return f"the JVM of process {self.pid} on {self.host}, which is gone,"
        return f"process {self.jvm} on {self.host}, the JVM of a job that is gone,"


class Lease:
    """A lock on `<checkpoints>/.lease`, held until released, or its holders end, however they end.

    Those are this process and whoever inherits `descriptors`: a JVM, which may write for a moment
    after the process that started it was killed. Only a local folder can be locked: for others,
    `take` succeeds. Jobs of other folders and hosts are kept apart by the group that they join.
    """

    def __init__(self, checkpoints: str) -> None:
        self.checkpoints = checkpoints
        self._folder = local_folder(checkpoints)
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """Whether it is ours now; returns at once. OSError when the folder cannot be made."""
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
        """What a child keeps open to hold the lease, too."""
        return () if self._file is None else (self._file.fileno(),)

    def share(self, pid: int) -> None:
        """Makes known which child keeps them."""
        self._note(jvm=pid)

    def _note(self, **more: int) -> None:
        if self._file is not None:
            self._file.truncate(0)
            told = {"pid": os.getpid(), "host": socket.gethostname(), **more}
            self._file.write(json.dumps(told))
            self._file.flush()

    def release(self) -> None:
        """For another to take, before this process ends."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def holder(self) -> LeaseHolder | None:
        """Who has it, as far as it is known."""
        try:
            told = json.loads(((self._folder or Path()) / ".lease").read_text())
            return LeaseHolder(int(told["pid"]), str(told["host"]), told.get("jvm"))
        except (OSError, ValueError, TypeError, KeyError):
            return None
