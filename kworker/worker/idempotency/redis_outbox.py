"""Marks on their way to Redis: kept over an outage, and in `state_dir` over the end of a life."""

import json
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import structlog

from kworker.core.claim import Claimed, Exchange, HandOver, Release

_LOG = structlog.get_logger()

CALL_MOST = 500  # marks of a kind in one call: Redis serves nobody else meanwhile
_OUTCOMES_MOST = 8  # of up to 64 KiB each
KEPT_MOST = 100_000  # beyond, the oldest are dropped: only `process` without Redis gets there


class RedisOutbox:
    """What is to be told to Redis: done, outcomes handed on, claims released.

    Owned by the claims thread. Each may be told twice, and by anybody: what is done stays
    done, and the others name the claim that they are about. So the marks that a life leaves
    in the folder may be told by any other of the same instance, or by two at once.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._owner = owner
        self.done: dict[str, None] = {}
        self._ended: dict[str, HandOver] = {}
        self._released: dict[tuple[str, Claimed], Release] = {}
        self._files: set[Path] = set()  # whose marks are among these
        self.dropped = 0  # marks: what they were about may be repeated

    def __len__(self) -> int:
        return len(self.done) + len(self._ended) + len(self._released)

    @property
    def many(self) -> bool:
        """There are more than `next` gives."""
        most = max(len(self.done), len(self._released))
        return most > CALL_MOST or len(self._ended) > _OUTCOMES_MOST

    def add_done(self, ids: Iterable[str]) -> None:
        self.done.update(dict.fromkeys(ids))
        self._bound(self.done)

    def add_ended(self, mark: HandOver) -> None:
        self._ended[mark.id] = mark

    def add_released(self, mark: Release) -> None:
        self._released[mark.id, mark.claim] = mark
        self._bound(self._released)

    def next(self) -> Exchange:
        """As many as one call may carry; they stay until `told`."""
        return Exchange(
            done=list(islice(self.done, CALL_MOST)),
            ended=list(islice(self._ended.values(), _OUTCOMES_MOST)),
            released=list(islice(self._released.values(), CALL_MOST)),
        )

    def told(self, exchange: Exchange) -> None:
        """Redis has them; files of which nothing is left are removed."""
        for id_ in exchange.done:
            self.done.pop(id_, None)
        for ended in exchange.ended:
            self._ended.pop(ended.id, None)
        for mark in exchange.released:
            self._released.pop((mark.id, mark.claim), None)
        if self._files and not len(self):
            for file in self._files:
                file.unlink(missing_ok=True)
            self._files.clear()

    def _bound(self, kept: dict[Any, Any]) -> None:
        while len(kept) > KEPT_MOST:
            del kept[next(iter(kept))]
            self.dropped += 1

    # -- over the end of a life -------------------------------------------------------

    def keep(self) -> None:
        """Writes what is left, for the next life; with `told`, it goes again."""
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
        """Takes over what all ended lives have left."""
        for file in sorted(self._folder.glob("*.json")):
            self._take_over(file)

    def load_of(self, owner: str) -> bool:
        """Takes over what this one has left; whether there was anything that was not known."""
        file = self._file(owner)
        return file not in self._files and file.exists() and self._take_over(file)

    def _take_over(self, file: Path) -> bool:
        try:
            data = json.loads(file.read_text())
        except FileNotFoundError:
            return False  # another has told them
        except ValueError:
            _LOG.error("marks cannot be read: effects may be repeated", file=str(file))
            file.replace(file.with_suffix(".bad"))
            return False
        self._files.add(file)
        self.done.update(dict.fromkeys(data["done"]))
        for id_, claim, outcome in data["ended"]:
            self.add_ended(HandOver(id_, Claimed(*claim), outcome))
        for id_, claim, ended_too in data["released"]:
            self.add_released(Release(id_, Claimed(*claim), ended_too))
        return True

    def _as_data(self) -> dict[str, Any]:
        ended, released = self._ended.values(), self._released.values()
        return {
            "done": list(self.done),
            "ended": [(m.id, (m.claim.owner, m.claim.source), m.outcome) for m in ended],
            "released": [(m.id, (m.claim.owner, m.claim.source), m.ended_too) for m in released],
        }

    def _file(self, owner: str) -> Path:
        return self._folder / f"{owner.replace('/', '_')}.json"
