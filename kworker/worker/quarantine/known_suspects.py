"""The suspects that a poll thread knows: of its own crash journal, and of other hosts."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from kworker.core.headers import SourcePosition
from kworker.core.record import Record
from kworker.core.suspects import Suspect
from kworker.instance.crash_journal import CrashJournal, WatchedJournal
from kworker.worker.quarantine.shared_suspects import SharedSuspects

_LOG = structlog.get_logger()
_REFRESH_EVERY_S = 0.2


class KnownSuspects:
    """The suspects of all hosts, by source position. Owned by the poll thread."""

    def __init__(self, folder: Path, shared: SharedSuspects | None = None) -> None:
        """`folder` is the state folder's `suspects`, which need not be there."""
        self._journal = CrashJournal(folder)
        self._own = WatchedJournal(self._journal)
        self._shared = shared
        self._others: Mapping[SourcePosition, Suspect] = {}
        self._all: dict[SourcePosition, Suspect] = {}
        self._refresh_at = 0.0

    def __bool__(self) -> bool:
        self.merge_shared()
        return bool(self._all)

    def __contains__(self, record: Record) -> bool:
        return record.source.place in self._all

    def of(self, record: Record) -> Suspect:
        """The suspect of this record; one without deaths when its file has gone meanwhile."""
        place = record.source.place
        return self._all.get(place) or Suspect(place, "crash")

    def refresh(self, now: float, *, force: bool = False) -> None:
        """Reads the journal if it has changed: a `stat` now and then, unless forced."""
        if force and self._shared:
            self._shared.request_refresh()
        if now < self._refresh_at and not force:
            return
        self._refresh_at = now + _REFRESH_EVERY_S
        if self._own.refresh(force=force):
            self._merge()

    def merge_shared(self) -> None:
        """Takes over what the claims thread has read of other hosts since; no I/O."""
        if self._shared and self._shared.others is not self._others:
            self._others = self._shared.others
            self._merge()

    def _merge(self) -> None:
        self._all = {**self._own.suspects}
        for place, suspect in self._others.items():
            if place not in self._all or suspect.deaths > self._all[place].deaths:
                self._all[place] = suspect

    def record_death(self, suspect: Suspect) -> None:
        """Writes a suspect with one death more to the journal, which outlives this worker."""
        self._all[suspect.place] = suspect
        try:
            self._journal.write(suspect)
        except OSError as error:
            _LOG.warning(
                f"cannot write a suspect's death to the journal ({error.strerror});"
                " after a restart its deaths are counted from 0",
                suspect="/".join(map(str, suspect.place)),
            )

    def settled(self, records: Iterable[Record]) -> None:
        """Removes records from the suspects: all their outputs are durable."""
        for record in records if self._all else ():
            place = record.source.place
            if self._all.pop(place, None):
                self._journal.remove(place)
                if self._shared:
                    self._shared.settle(place)
