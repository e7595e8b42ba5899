"""Updates for Redis: kept in memory over an outage, and in `state_dir` over a restart."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import structlog

from kworker.core.claim import Claimed, Exchange, HandOver, Release

_LOG = structlog.get_logger()

CALL_MOST = 500  # updates of a kind in one call: Redis serves no other client meanwhile
_OUTCOME_CHARS_MOST = 700_000  # in one call: eight of 64 KiB, as `pack` encodes them
KEPT_MOST = 100_000  # beyond, the oldest are dropped: only `process` without Redis gets there


class RedisOutbox:
    """Updates that Redis has not received yet.

    Owned by the claims thread. An update marks an event as done, releases a claim, or stores the
    results of a run for the next owner of its partition. An update that is sent twice does no harm,
    and any process may send it. So the updates that an ended process left in `folder` may be sent
    by any other process of the instance. If a file cannot be read or written, that is logged, and
    the updates in memory are sent to Redis all the same.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._owner = owner
        self.done: dict[str, None] = {}
        self._outcomes: dict[str, HandOver] = {}
        self._releases: dict[tuple[str, Claimed], Release] = {}
        self._files: set[Path] = set()  # whose updates are among these
        self._told = False  # of a file that cannot be used
        self.dropped = 0  # updates that were given up: their events may run again

    def __len__(self) -> int:
        return len(self.done) + len(self._outcomes) + len(self._releases)

    @property
    def needs_calls(self) -> bool:
        """True if there are more updates than one call to Redis may carry."""
        most = max(len(self.done), len(self._releases))
        return most > CALL_MOST or len(self._outcomes) > len(self._next_outcomes())

    def add_done(self, ids: Iterable[str]) -> None:
        self.done.update(dict.fromkeys(ids))
        self._bound(self.done)

    def add_outcome(self, update: HandOver) -> None:
        self._outcomes[update.id] = update

    def add_release(self, update: Release) -> None:
        self._releases[update.id, update.claim] = update
        self._bound(self._releases)

    def next(self) -> Exchange:
        """Returns updates for one call to Redis. This call does not remove them from the outbox."""
        return Exchange(
            done=list(islice(self.done, CALL_MOST)),
            ended=self._next_outcomes(),
            released=list(islice(self._releases.values(), CALL_MOST)),
        )

    def _next_outcomes(self) -> list[HandOver]:
        """Returns the outcomes for one call: many small ones, or a few large ones."""
        chosen: list[HandOver] = []
        size = 0
        for update in islice(self._outcomes.values(), CALL_MOST):
            size += len(update.outcome)
            if chosen and size > _OUTCOME_CHARS_MOST:
                break
            chosen.append(update)
        return chosen

    def delivered(self, exchange: Exchange) -> None:
        """Removes the updates in `exchange`, which Redis has now.

        If no update is left, also deletes the files that held updates.
        """
        for id_ in exchange.done:
            self.done.pop(id_, None)
        for ended in exchange.ended:
            self._outcomes.pop(ended.id, None)
        for released in exchange.released:
            self._releases.pop((released.id, released.claim), None)
        if self._files and not len(self):
            self._remove_files()

    def _bound(self, kept: dict[Any, Any]) -> None:
        while len(kept) > KEPT_MOST:
            del kept[next(iter(kept))]
            self.dropped += 1

    # -- over a restart ---------------------------------------------------------------

    def keep(self) -> bool:
        """Writes the remaining updates to a file, for the next process to send.

        Once Redis has all updates, `delivered` deletes the file. Returns False if the file cannot
        be written.
        """
        if not len(self):
            return True
        file = self._file(self._owner)
        draft = file.with_suffix(".part")
        try:
            self._write(draft)
            draft.replace(file)
        except OSError as error:
            _LOG.error(
                "idempotency updates that Redis lacks cannot be written to state_dir; they are"
                " sent to Redis now, and are lost if it does not answer",
                updates=len(self),
                error=str(error),
            )
            with suppress(OSError):
                draft.unlink()  # the disk may be full
            return False
        self._files.add(file)
        return True

    def _write(self, draft: Path) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with draft.open("w") as out:
            json.dump(self._as_data(), out)
            out.flush()
            os.fsync(out.fileno())

    def load(self) -> None:
        """Loads the updates that all ended processes of this instance have left in files."""
        with self._file_errors_logged():
            for file in sorted(self._folder.glob("*.json")):
                self._load(file)

    def load_of(self, owner: str) -> bool:
        """Loads the updates that the ended process `owner` has left in a file.

        Returns False if there is no such file, if it was loaded before, or if it cannot be read.
        """
        file = self._file(owner)
        return file not in self._files and self._load(file)

    def _load(self, file: Path) -> bool:
        if (data := self._read(file)) is None:
            return False
        self._files.add(file)
        self.done.update(dict.fromkeys(data["done"]))
        for id_, claim, outcome in data["ended"]:
            self.add_outcome(HandOver(id_, Claimed(*claim), outcome))
        for id_, claim, ended_too in data["released"]:
            self.add_release(Release(id_, Claimed(*claim), ended_too))
        return True

    def _read(self, file: Path) -> dict[str, Any] | None:
        """Returns the updates in a file; None if it is gone, or cannot be read."""
        with self._file_errors_logged():
            try:
                data: dict[str, Any] = json.loads(file.read_text())
                return data
            except ValueError:
                _LOG.error(
                    "a file of idempotency updates for Redis is damaged, and is renamed to end in"
                    " .bad; the events in it may run again",
                    file=str(file),
                )
                file.replace(file.with_suffix(".bad"))
        return None

    def _remove_files(self) -> None:
        """Removes the files whose updates Redis has.

        If a file cannot be removed, a later call tries again. Until then, `load_of` ignores it.
        """
        for file in list(self._files):
            with self._file_errors_logged():
                file.unlink(missing_ok=True)
                self._files.remove(file)

    @contextmanager
    def _file_errors_logged(self) -> Iterator[None]:
        """Suppresses an OSError, which ends the `with` block; logs only the first such error.

        A missing file is not logged: another process has sent the updates in it.
        """
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            if not self._told:
                self._told = True
                _LOG.error(
                    "a file of idempotency updates for Redis cannot be read or removed; the worker"
                    " goes on without it, and the events in it may run again. Let all in state_dir"
                    " belong to the service's user",
                    error=str(error),
                )

    def _as_data(self) -> dict[str, Any]:
        outcomes, releases = self._outcomes.values(), self._releases.values()
        return {
            "done": list(self.done),
            "ended": [(m.id, (m.claim.owner, m.claim.source), m.outcome) for m in outcomes],
            "released": [(m.id, (m.claim.owner, m.claim.source), m.ended_too) for m in releases],
        }

    def _file(self, owner: str) -> Path:
        return self._folder / f"{owner.replace('/', '_')}.json"
