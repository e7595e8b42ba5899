"""A folder of small files, such as a checkpoint, on any file system."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit


class Folder(Protocol):
    """A folder of files on any file system. The folder and its files need not exist.

    Files are named by their path inside the folder, with `/`. A missing file is read as None, and a
    missing folder has no files. Raises OSError for a file that cannot be read. `str()` returns the
    path or URL of the folder.
    """

    @property
    def name(self) -> str:
        """The last part of the folder's path."""

    def exists(self, name: str = "") -> bool:
        """True if the folder exists; with `name`, if it contains this file or folder."""

    def names(self, below: str) -> Sequence[str]:
        """The names of what the subfolder `below` contains; checksum files may be left out."""

    def walk(self, below: str) -> Sequence[str]:
        """The paths of all files in the subfolder `below`, at any depth, sorted."""

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Creates or replaces a file and creates its folder; no reader sees half a file.

        Where the file system cannot replace a file in one step, a kill may leave no file.
        """

    def delete(self, name: str) -> None:
        """Removes a file, if it exists."""

    def remove(self) -> None:
        """Removes the folder and everything in it."""

    def beside(self, name: str) -> "Folder":
        """The folder `name` in the parent folder of this one."""

    def rename(self, name: str) -> "Folder":
        """Renames the folder, to a name that is not in use, and returns it.

        An object store renames file by file, so that a kill leaves some files under each name.
        """


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder on a disk of this host, or on a mounted file system."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    def exists(self, name: str = "") -> bool:
        return (self.path / name).exists()

    def names(self, below: str) -> Sequence[str]:
        try:
            return os.listdir(self.path / below)
        except (FileNotFoundError, NotADirectoryError):  # perhaps just now: a job moves it
            return []

    def walk(self, below: str) -> Sequence[str]:
        found = sorted((self.path / below).rglob("*"))
        return [str(path.relative_to(self.path)) for path in found if path.is_file()]

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.part")
        draft.write_bytes(content)
        draft.replace(path)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        if self.path.exists():
            shutil.rmtree(self.path)

    def beside(self, name: str) -> "LocalFolder":
        return LocalFolder(self.path.with_name(name))

    def rename(self, name: str) -> "LocalFolder":
        return LocalFolder(self.path.rename(self.path.with_name(name)))


def local_folder(place: str) -> Path | None:
    """Returns the path in a local path or `file:` URL; None for any other URL."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(parts.path)
    return None if parts.scheme else Path(place)
