"""Updates for Redis: kept in memory over an outage, and in `state_dir` over a restart."""

import json
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import structlog

from kworker.core.claim import Claimed, Exchange, HandOver, Release

_LOG = structlog.get_logger()

CALL_MOST = 500  # updates of a kind in one call: Redis serves no other client meanwhile
_OUTCOMES_MOST = 8  # of up to 64 KiB each
KEPT_MOST = 100_000  # beyond, the oldest are dropped: only `process` without Redis gets there


class RedisOutbox:
    """Updates that Redis has not received yet.

    Owned by the claims thread. An update marks an event as done, releases a claim, or stores the
    results of a run for the next owner of its partition. An update that is sent twice does no harm,
    and any process may send it. So the updates that an ended process left in `folder` may be sent
    by any other process of the instance.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._owner = owner
        self.done: dict[str, None] = {}
        self._outcomes: dict[str, HandOver] = {}
        self._releases: dict[tuple[str, Claimed], Release] = {}
        self._files: set[Path] = set()  # whose updates are among these
        self.dropped = 0  # updates that were given up: their events may run again

    def __len__(self) -> int:
        return len(self.done) + len(self._outcomes) + len(self._releases)

    @property
    def needs_calls(self) -> bool:
        """True if there are more updates than one call to Redis may carry."""
        most = max(len(self.done), len(self._releases))
        return most > CALL_MOST or len(self._outcomes) > _OUTCOMES_MOST

    def add_done(self, ids: Iterable[str]) -> None:
        self.done.update(dict.fromkeys(ids))
        self._bound(self.done)

    def add_outcome(self, update: HandOver) -> None:
        self._outcomes[update.id] = update

    def add_release(self, update: Release) -> None:
        self._releases[update.id, update.claim] = update
        self._bound(self._releases)

    def next(self) -> Exchange:
        """Returns the updates for one call to Redis. They stay in the outbox until `delivered`."""
        return Exchange(
            done=list(islice(self.done, CALL_MOST)),
            ended=list(islice(self._outcomes.values(), _OUTCOMES_MOST)),
            released=list(islice(self._releases.values(), CALL_MOST)),
        )

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
            for file in self._files:
                file.unlink(missing_ok=True)
            self._files.clear()

    def _bound(self, kept: dict[Any, Any]) -> None:
        while len(kept) > KEPT_MOST:
            del kept[next(iter(kept))]
            self.dropped += 1

    # -- over a restart ---------------------------------------------------------------

    def keep(self) -> None:
        """Writes the remaining updates to a file, for the next process to send.

        Once Redis has all updates, `delivered` deletes the file.
        """
        if not len(self):
            return
        file = self._file(self._owner)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = file.with_suffix(".part")
        with draft.open("w") as out:
            json.dump(self._as_data(), out)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)
        self._files.add(file)

    def load(self) -> None:
        """Loads the updates that all ended processes of this instance have left in files."""
        for file in sorted(self._folder.glob("*.json")):
            self._load(file)

    def load_of(self, owner: str) -> bool:
        """Loads the updates that the ended process `owner` has left in a file.

        Returns False if there is no such file, if it was loaded before, or if it cannot be read.
        """
        file = self._file(owner)
        return file not in self._files and file.exists() and self._load(file)

    def _load(self, file: Path) -> bool:
        try:
            data = json.loads(file.read_text())
        except FileNotFoundError:
            return False  # another process has sent them
        except ValueError:
            _LOG.error(
                "a file of idempotency updates for Redis is damaged, and is renamed to end in"
                " .bad; the events in it may run again",
                file=str(file),
            )
            file.replace(file.with_suffix(".bad"))
            return False
        self._files.add(file)
        self.done.update(dict.fromkeys(data["done"]))
        for id_, claim, outcome in data["ended"]:
            self.add_outcome(HandOver(id_, Claimed(*claim), outcome))
        for id_, claim, ended_too in data["released"]:
            self.add_release(Release(id_, Claimed(*claim), ended_too))
        return True

    def _as_data(self) -> dict[str, Any]:
        outcomes, releases = self._outcomes.values(), self._releases.values()
        return {
            "done": list(self.done),
            "ended": [(m.id, (m.claim.owner, m.claim.source), m.outcome) for m in outcomes],
            "released": [(m.id, (m.claim.owner, m.claim.source), m.ended_too) for m in releases],
        }

    def _file(self, owner: str) -> Path:
        return self._folder / f"{owner.replace('/', '_')}.json"
