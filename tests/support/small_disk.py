"""A disk of a few megabytes for the processes of one service: a file system that only they see."""

import ctypes
import os
import shutil
from pathlib import Path

from tests.support import namespaces
from tests.support.waiting import eventually

_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18  # of <sys/mount.h>
_PIECE_BYTES = 64 << 10


class SmallDisk:
    """A tmpfs at `folder`. Others find it by way of a process that sees it."""

    def __init__(self, folder: Path, size: str) -> None:
        self._folder = folder
        self._size = size
        folder.mkdir(parents=True, exist_ok=True)

    def enter(self) -> None:
        """Called in a process before its program begins; its children see the disk, too."""
        namespaces.enter(namespaces.MOUNTS)
        libc = ctypes.CDLL(None, use_errno=True)
        namespaces.check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
        size = f"size={self._size}".encode()
        namespaces.check(libc.mount(b"none", bytes(self._folder), b"tmpfs", 0, size))

    def seen_by(self, pid: int) -> Path:
        """Where everybody finds it, as long as that process lives."""
        return Path(f"/proc/{pid}/root{self._folder}")

    def fill(self, pid: int) -> None:
        """To the last page."""

        def full() -> bool:
            with (self.seen_by(pid) / "ballast").open("ab", buffering=0) as file:
                try:
                    while file.write(bytes(_PIECE_BYTES)) == _PIECE_BYTES:
                        pass
                except OSError:
                    return True
            return False

        eventually(full, what="the disk is full")

    def make_room(self, pid: int) -> None:
        (self.seen_by(pid) / "ballast").unlink()

    def keep(self, pid: int) -> None:
        """Copies what it holds to where it stood, for those who come later."""
        shutil.copytree(self.seen_by(pid), self._folder, dirs_exist_ok=True)


def allowed() -> bool:
    """Whether this machine lets a process have a file system of its own."""
    if (pid := os.fork()) == 0:
        try:
            SmallDisk(Path("/tmp"), "1m").enter()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
