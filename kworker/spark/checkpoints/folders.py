"""A folder of small files, as a checkpoint is one: what is asked of its file system."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit


class Folder(Protocol):
    """A folder that need not be there yet. Files are named by their path below it, with `/`.

    What is not there is no error: it is empty, or `None`. OSError for a file whose content is not
    to be had. `str()` is the folder as a person would name it.
    """

    @property
    def name(self) -> str:
        """The last part of its path."""

    def exists(self, name: str = "") -> bool:
        """Whether it is there itself, or what it holds under a name."""

    def names(self, below: str) -> Sequence[str]:
        """What stands directly in a folder below; without the checksums, where those are hidden."""

    def walk(self, below: str) -> Sequence[str]:
        """All files in a folder below, however deep, in the order of their names."""

    def read(self, name: str) -> bytes | None:
        """The whole file."""

    def write(self, name: str, content: bytes) -> None:
        """Makes or replaces a file, and the folder for it; no reader finds a part of it.

        Where the file system cannot replace in one step, a kill may leave neither.
        """

    def delete(self, name: str) -> None:
        """Removes a file."""

    def remove(self) -> None:
        """Removes the folder with all that it holds."""

    def beside(self, name: str) -> "Folder":
        """Another one, in the same folder as this."""

    def rename(self, name: str) -> "Folder":
        """Moves it to a name that is free, beside; in an object store file by file.

        There, a kill leaves some files under either name.
        """


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """On a disk of this host, or what is mounted like one."""

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
    """The folder that a path or `file:` URL names; None for an object store or HDFS."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(parts.path)
    return None if parts.scheme else Path(place)
