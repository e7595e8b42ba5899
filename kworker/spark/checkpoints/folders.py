"""A folder of small files, such as a checkpoint, on any file system."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit


class Folder(Protocol):
    """A folder that need not exist yet. Files are named by their path below it, with `/`.

    Missing files and folders are no error: they are empty, or `None`. OSError for a file that
    cannot be read. `str()` is the folder as a person would name it.
    """

    @property
    def name(self) -> str:
        """The last part of its path."""

    def exists(self, name: str = "") -> bool:
        """True if the folder exists, or with a name, if that exists in it."""

    def names(self, below: str) -> Sequence[str]:
        """The names directly in a folder below; without checksum files, where those are hidden."""

    def walk(self, below: str) -> Sequence[str]:
        """All files in a folder below, at any depth, sorted by name."""

    def read(self, name: str) -> bytes | None:
        """The content of a file; None without one."""

    def write(self, name: str, content: bytes) -> None:
        """Creates or replaces a file, and the folder for it; no reader finds a part of it.

        Where the file system cannot replace in one step, a kill may leave no file.
        """

    def delete(self, name: str) -> None:
        """Removes a file."""

    def remove(self) -> None:
        """Removes the folder and everything in it."""

    def beside(self, name: str) -> "Folder":
        """A sibling of this folder."""

    def rename(self, name: str) -> "Folder":
        """Renames the folder to a free name; in an object store file by file.

        There, a kill leaves some files under each name.
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
        folder = self.path / below
        return [each.name for each in folder.iterdir()] if folder.is_dir() else []

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
    """The local folder of a path or `file:` URL; None for an object store or HDFS."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(parts.path)
    return None if parts.scheme else Path(place)
