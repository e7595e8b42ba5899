"""The lease on a folder of checkpoints: two jobs on one checkpoint would corrupt it."""

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit


class Lease:
    """A lock on `<checkpoints>/.lease`, held until released, or its holders end, however they end.

    Those are this process and whoever inherits `descriptors`: a JVM, which may write for a moment
    after the process that started it was killed. Only a local folder can be locked: for others,
    `take` succeeds, and it is the operator's part to run one job.
    """

    def __init__(self, checkpoints: str) -> None:
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
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        self._file = file
        return True

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a child keeps open to hold the lease, too."""
        return () if self._file is None else (self._file.fileno(),)

    def release(self) -> None:
        """For another to take, before this process ends."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def holder(self) -> dict[str, object]:
        """The `pid` and `host` of who has it, as far as it is known."""
        try:
            found = json.loads(((self._folder or Path()) / ".lease").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def local_folder(place: str) -> Path | None:
    """The folder that a path or `file:` URL names; None for an object store or HDFS."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(parts.path)
    return None if parts.scheme else Path(place)
