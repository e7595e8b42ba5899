"""The crash journal: a small file for each suspect, read by the workers."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from kworker.core.headers import SourcePosition
from kworker.core.suspects import Suspect
from kworker.instance.folder_watch import FolderWatch

KEPT_S = 24 * 3600.0  # a suspect that was not redelivered until then has long been settled
_BYTES_MAX = 4096


class CrashJournal:
    """The suspects of one instance, which may have killed a worker: a folder with a file for each.

    The supervisor adds suspects. The worker that has a suspect stores in the file how many isolated
    processes the suspect has ended, and removes the file once the suspect is settled. A file is
    replaced as a whole, so no reader sees half of it. Files are not flushed to the disk: after a
    power failure a record is no suspect until it kills a worker again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def watch(self) -> FolderWatch:
        """Returns a watch that tells if a suspect was added, replaced or removed."""
        return FolderWatch(self._folder)

    def read(self) -> dict[SourcePosition, Suspect]:
        """Returns all suspects; ignores files that cannot be read."""
        found = (_read(path) for path in self._files())
        return {suspect.place: suspect for suspect in found if suspect}

    def add_suspects(
        self,
        places: Iterable[SourcePosition],
        why: Literal["crash", "timeout"],
        cause: str,
        now_s: float,
        count_max: int,
    ) -> None:
        """Adds the records at `places`, which were in hand when a process ended by `cause`.

        `now_s` is seconds since 1970. Keeps only the newest `count_max` suspects. Raises OSError if
        a file cannot be written.
        """
        for place in places:
            known = _read(self._path(place)) or Suspect(place, why, since=now_s)
            self.write(replace(known.after(cause), why=why))
        self._tidy(now_s, count_max)

    def write(self, suspect: Suspect) -> None:
        """Adds a suspect, or replaces its file. Raises OSError if the file cannot be written."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._path(suspect.place)
        unfinished = path.with_suffix(f".{os.getpid()}")
        data = pack(suspect).encode()
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        unfinished.replace(path)

    def remove(self, place: SourcePosition) -> None:
        """Removes a suspect, if it is there."""
        try:
            self._path(place).unlink(missing_ok=True)
        except OSError:  # a failing disk: the record only runs as a suspect once more
            pass

    def _path(self, place: SourcePosition) -> Path:
        # A hash, because a topic's name alone may be as long as a file's name can be.
        topic, partition, offset = place
        name = hashlib.blake2s(f"{topic}/{partition}/{offset}".encode(), digest_size=16)
        return self._folder / f"{name.hexdigest()}.json"

    def _files(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if path.suffix == ".json"]
        except OSError:
            return []

    def _tidy(self, now_s: float, count_max: int) -> None:
        by_age = sorted((_written_s(path), path) for path in self._folder.iterdir())
        surplus = len(by_age) - count_max
        for number, (written, path) in enumerate(by_age):
            if number < surplus or now_s - written > KEPT_S:
                path.unlink(missing_ok=True)


class WatchedJournal:
    """The suspects of a journal, read again only when its folder has changed."""

    def __init__(self, journal: CrashJournal) -> None:
        self._journal = journal
        self._watch = journal.watch()
        self.suspects: dict[SourcePosition, Suspect] = {}  # replaced as a whole

    def refresh(self, *, force: bool = False) -> bool:
        """Reads the suspects if their folder has changed, or if `force`.

        Returns True if they were read.
        """
        if not self._watch.changed() and not force:
            return False
        self.suspects = self._journal.read()
        return True


def pack(suspect: Suspect) -> str:
    """Encodes a suspect as JSON, for a file or for Redis."""
    return json.dumps(asdict(suspect))


def unpack(text: str | bytes) -> Suspect | None:
    """Decodes a suspect; returns None if the text is not a suspect."""
    try:
        raw = json.loads(text)
        topic, partition, offset = raw["place"]
        return Suspect(
            place=(str(topic), int(partition), int(offset)),
            why="timeout" if raw["why"] == "timeout" else "crash",
            deaths=int(raw["deaths"]),
            unsure=int(raw["unsure"]),
            ended=tuple(str(cause) for cause in raw["ended"]),
            since=float(raw["since"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path) -> Suspect | None:
    try:
        with path.open("rb") as file:
            return unpack(file.read(_BYTES_MAX))
    except OSError:
        return None
