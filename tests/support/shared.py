"""What the processes of one test session share: servers, and their end with the session."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = "PYTEST_SESSION_FOLDER"
_STOP_TIMEOUT_S = 180.0

# Stops the sandboxes that a file names when its standard input ends: at the session's end, and
# also when pytest is interrupted or killed, which no fixture survives.
_GUARD = """
import sys
from pathlib import Path
sys.stdin.read()
folders = Path(sys.argv[1])
if folders.exists():
    from kworker.sandbox import Sandbox
    for folder in dict.fromkeys(folders.read_text().splitlines()):
        Sandbox(folder).down(wipe=True)
"""


class Guard:
    """Outlives the session by as long as its servers take to end.

    Owned by the process that a person started; the others find its folder by the environment.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kworker-session-"))
        os.environ[_FOLDER] = str(self._folder)
        # In a session of its own: an interrupt from the terminal is not for it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _GUARD, _folders()],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        assert self._process.wait(_STOP_TIMEOUT_S) == 0
        shutil.rmtree(self._folder)


def guard(sandbox: Path) -> None:
    """Has the sandbox of a folder stopped, however the session ends."""
    with _folders().open("a") as file:
        file.write(f"{sandbox}\n")


@contextmanager
def one_at_a_time(name: str) -> Iterator[Path]:
    """A folder that the session's processes share, to be used by one of them at a time."""
    folder = _session() / name
    with (_session() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _session() -> Path:
    return Path(os.environ[_FOLDER])


def _folders() -> Path:
    return _session() / "sandboxes"
