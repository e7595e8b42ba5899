"""The crash journal as the poll thread has it: in memory, read again when it changes."""

import time
from collections.abc import Iterable
from pathlib import Path

import structlog

from kworker.core.record import Record
from kworker.core.suspects import Place, Suspect
from kworker.supervisor.journal import Journal

_LOG = structlog.get_logger()
_LOOK_EVERY_S = 0.2
_STILL_NS = 1_000_000_000  # a folder changed later than so may change again within the same tick


class KnownSuspects:
    """Who is suspected, by source position. Owned by the poll thread."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the state folder's `suspects`, which need not be there."""
        self._journal = Journal(folder)
        self._all: dict[Place, Suspect] = {}
        self._changed_ns: int | None = 0
        self._look_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._all)

    def __contains__(self, record: Record) -> bool:
        return record.source.place in self._all

    def of(self, record: Record) -> Suspect:
        """What is known of it; a blank sheet when its file has gone meanwhile."""
        place = record.source.place
        return self._all.get(place) or Suspect(place, "crash")

    def look(self, now: float, *, force: bool = False) -> None:
        """Reads the journal if it has changed: a `stat` now and then, unless forced."""
        if now < self._look_at and not force:
            return
        self._look_at = now + _LOOK_EVERY_S
        changed_ns = self._journal.changed_ns
        if changed_ns == self._changed_ns and not force:
            return
        self._all = self._journal.read() if changed_ns else {}
        still = time.time_ns() - changed_ns > _STILL_NS
        self._changed_ns = changed_ns if still else None

    def count(self, suspect: Suspect) -> None:
        """One of its deaths was counted, which outlives this worker."""
        self._all[suspect.place] = suspect
        try:
            self._journal.write(suspect)
        except OSError as error:
            _LOG.warning(
                f"a death of a suspect is not in the journal ({error.strerror}):"
                " after a restart it counts anew",
                suspect="/".join(map(str, suspect.place)),
            )

    def settled(self, records: Iterable[Record]) -> None:
        """All that they led to is durable: they are suspects no more."""
        for record in records if self._all else ():
            place = record.source.place
            if self._all.pop(place, None):
                self._journal.remove(place)
