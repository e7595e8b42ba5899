"""Records rejected by `kworker reject`: a small file for each under `state_dir`, until settled."""

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import structlog

from kworker.core.headers import Source, SourcePosition
from kworker.core.record import Record
from kworker.errors import UsageError
from kworker.instance.folder_watch import FolderWatch

_LOG = structlog.get_logger()
KEPT_S = 86_400.0  # a record that was not redelivered until then has been settled somewhere else
_REFRESH_EVERY_S = 0.2
_COUNT_MAX = 10_000


class Rejection(NamedTuple):
    """A rejected record, identified by its source position and its timestamp.

    In a topic that was created again, another record may have the same position.
    """

    source: Source
    by: str
    since_s: float  # of the wall clock


class Rejections:
    """A folder with a file for each rejected record.

    `kworker reject` adds the file. The worker that finishes the record removes the file.
    """

    def __init__(
        self, folder: Path, wall: Callable[[], float] = time.time, *, removes: bool = True
    ) -> None:
        """`wall` returns seconds since 1970.

        `removes` is False in a replay: there, `settled` removes no file, because a worker of the
        service may still get a retry of the record.
        """
        self._folder = folder
        self._wall = wall
        self._removes = removes
        self._refresh_at = 0.0
        self._watch = FolderWatch(folder)
        self._problem = ""
        self._known: dict[SourcePosition, Rejection] = {}

    def add(self, source: Source, by: str) -> None:
        """Rejects a record, which a worker then dead-letters.

        Raises UsageError if too many rejected records wait for a worker already, and OSError if the
        file cannot be written.
        """
        self._make_folder()
        if len(os.listdir(self._folder)) >= _COUNT_MAX:
            raise UsageError(
                f"reject: {_COUNT_MAX:,} rejected records wait for a worker, and no more may wait:"
                " kworker reject --list shows them, --undo withdraws one"
            )
        path = self._path(source.place)
        draft = path.with_suffix(".part")
        draft.unlink(missing_ok=True)
        with draft.open("x") as file:
            # Root may have typed the command; only the service's user can enter the folder.
            os.fchmod(file.fileno(), 0o644)
            file.write(json.dumps({"source": str(source), "by": by}))
        draft.replace(path)

    def undo(self, place: SourcePosition) -> bool:
        """Removes the rejection of a record. Returns False if there is none. Raises OSError."""
        try:
            self._path(place).unlink()
        except FileNotFoundError:
            return False
        return True

    def pending(self) -> list[Rejection]:
        """Returns the rejections that still wait for a worker, sorted by source position.

        Raises OSError if the folder cannot be read.
        """
        found = [rejection for rejection in self._read() if not self._is_old(rejection)]
        return sorted(found, key=lambda rejection: rejection.source.place)

    def refresh(self, now: float) -> bool:
        """Reads the folder if it has changed. Returns True if it has new rejections.

        Checks the folder only every _REFRESH_EVERY_S seconds; in between, returns False. While the
        folder cannot be read, the rejections known before stay in force.
        """
        if now < self._refresh_at:
            return False
        self._refresh_at = now + _REFRESH_EVERY_S
        self._forget_old()
        before = self._known
        try:
            if self._watch.changed():
                self._known = {each.source.place: each for each in self._read()}
                self._problem = ""
        except OSError as error:
            self._watch.forget()
            self._log_problem(error)
        self._forget_old()
        return not self._known.keys() <= before.keys()

    @property
    def any(self) -> bool:
        return bool(self._known)

    def by(self, source: Source) -> str | None:
        """Returns the person who rejected the record, or None if nobody did."""
        known = self._known.get(source.place)
        return known.by if known and known.source.timestamp == source.timestamp else None

    def settled(self, records: Iterable[Record]) -> None:
        """Removes the rejections of records that this worker has finished."""
        if not self._removes:
            return
        offsets = {offset for _, _, offset in self._known}
        for record in records:
            if record.offset not in offsets and record.envelope is None:
                continue  # before `source`, which costs more than all else here
            place = record.source.place
            if self._known.pop(place, None) is not None:
                self._remove(place)

    def _forget_old(self) -> None:
        for place in [place for place, each in self._known.items() if self._is_old(each)]:
            del self._known[place]
            if self._remove(place):  # False in the other workers, so that one of them logs it
                _LOG.warning(
                    "a rejection (kworker reject) has expired: no worker of this host got the"
                    " record within a day; reject it again if it still waits",
                    record="{}:{}:{}".format(*place),
                )

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700)
        except FileExistsError:
            return
        owner = self._folder.parent.stat()
        if owner.st_uid != os.geteuid():  # root: the workers' user has to remove files
            os.chown(self._folder, owner.st_uid, owner.st_gid)

    def _remove(self, place: SourcePosition) -> bool:
        """Removes a rejection. Returns False if there is none, or if its file cannot be removed."""
        try:
            return self.undo(place)
        except OSError as error:
            self._log_problem(error)
            return False

    def _log_problem(self, error: OSError) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            _LOG.warning(
                f"{self._folder} cannot be used, so `kworker reject` may have no effect: the folder"
                " must belong to the user of the service",
                error=self._problem,
            )

    def _is_old(self, rejection: Rejection) -> bool:
        return self._wall() - rejection.since_s > KEPT_S

    def _path(self, place: SourcePosition) -> Path:
        return self._folder / "{}-{}-{}.json".format(*place)

    def _read(self) -> list[Rejection]:
        found = []
        for path in self._paths():
            try:
                document = json.loads(path.read_text())
                source = Source.parse(document["source"].encode())
                found.append(Rejection(source, str(document["by"]), path.stat().st_mtime))
            except (OSError, ValueError, KeyError):
                continue  # removed meanwhile, or another file
        return found

    def _paths(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
