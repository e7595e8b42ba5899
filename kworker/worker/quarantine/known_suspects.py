"""Who is suspected, as the poll thread has it: from the crash journal, and from other hosts."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from kworker.core.headers import SourcePosition
from kworker.core.record import Record
from kworker.core.suspects import Suspect
from kworker.instance.crash_journal import CrashJournal, WatchedJournal
from kworker.worker.quarantine.shared_suspects import SharedSuspects

_LOG = structlog.get_logger()
_LOOK_EVERY_S = 0.2


class KnownSuspects:
    """Who is suspected, by source position. Owned by the poll thread."""

    def __init__(self, folder: Path, shared: SharedSuspects | None = None) -> None:
        """`folder` is the state folder's `suspects`, which need not be there."""
        self._journal = CrashJournal(folder)
        self._own = WatchedJournal(self._journal)
        self._shared = shared
        self._others: Mapping[SourcePosition, Suspect] = {}
        self._all: dict[SourcePosition, Suspect] = {}
        self._look_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._all)

    def __contains__(self, record: Record) -> bool:
        return record.source.place in self._all

    def of(self, record: Record) -> Suspect:
        """What is known of it; a blank sheet when its file has gone meanwhile."""
        place = record.source.place
        return self._all.get(place) or Suspect(place, "crash")

    def refresh(self, now: float, *, force: bool = False) -> None:
        """Reads the journal if it has changed: a `stat` now and then, unless forced."""
        if force and self._shared:
            self._shared.want()
        if now < self._look_at and not force:
            return
        self._look_at = now + _LOOK_EVERY_S
        if self._own.refresh(force=force):
            self._put_together()

    def hear(self) -> None:
        """Takes in what other hosts have told meanwhile; costs nothing."""
        if self._shared and self._shared.others is not self._others:
            self._others = self._shared.others
            self._put_together()

    def _put_together(self) -> None:
        self._all = {**self._own.suspects}
        for place, suspect in self._others.items():
            if place not in self._all or suspect.deaths > self._all[place].deaths:
                self._all[place] = suspect

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
                if self._shared:
                    self._shared.settle(place)
