"""Records that a person wants dead: one small file each under `state_dir`, until it is done."""

import json
import os
from pathlib import Path

from kworker.core.headers import Source
from kworker.errors import UsageError

Place = tuple[str, int, int]
"""A source topic, partition and offset."""

_LOOK_EVERY_S = 0.2
_MOST = 10_000


class Refusals:
    """Written by `kworker reject`, read by every worker, removed by the one that buried it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._look_at = 0.0
        self._changed_ns = 0
        self._known: dict[Place, str] = {}

    def add(self, place: Place, by: str) -> None:
        """From now on the record dies, whatever it is about; UsageError when there are too many."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(os.listdir(self._folder)) >= _MOST:
            raise UsageError(f"{_MOST} rejected records wait already to be delivered")
        path = self._path(place)
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps({"place": place, "by": by}))
        draft.replace(path)

    def look(self, now: float) -> bool:
        """Whether new ones have come; looks at the folder only now and then."""
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY_S
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if changed_ns == self._changed_ns:
            return False
        self._changed_ns = changed_ns
        before, self._known = self._known, self._read()
        return not self._known.keys() <= before.keys()

    @property
    def any(self) -> bool:
        return bool(self._known)

    def by(self, source: Source) -> str | None:
        """Who rejected it, or None."""
        return self._known.get(source.place)

    def done(self, source: Source) -> None:
        """It is buried, or was done before anybody could."""
        if self._known.pop(source.place, None) is not None:
            self._path(source.place).unlink(missing_ok=True)

    def _path(self, place: Place) -> Path:
        return self._folder / "{}-{}-{}.json".format(*place)

    def _read(self) -> dict[Place, str]:
        found: dict[Place, str] = {}
        for path in self._folder.glob("*.json"):
            try:
                document = json.loads(path.read_text())
                topic, partition, offset = document["place"]
            except (OSError, ValueError, KeyError):
                continue  # removed meanwhile, or not ours
            found[str(topic), int(partition), int(offset)] = str(document["by"])
        return found
