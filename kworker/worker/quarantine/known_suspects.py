"""The suspects that a poll thread knows: from this instance's crash journal, and from Redis."""

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
        """`folder` is the folder `suspects` in `state_dir`, which need not exist."""
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
        """Returns the suspect for a record.

        If the record was removed from the suspects meanwhile, returns a new suspect with 0 deaths.
        """
        place = record.source.place
        return self._all.get(place) or Suspect(place, "crash")

    def refresh(self, now: float, *, force: bool = False) -> None:
        """Reads the crash journal if it has changed. Looks for a change at most every 0.2 s.

        With `force`, reads the journal at once. Then the claims thread also reads the suspects of
        other instances from Redis, if suspects are shared.
        """
        if force and self._shared:
            self._shared.request_refresh()
        if now < self._refresh_at and not force:
            return
        self._refresh_at = now + _REFRESH_EVERY_S
        if self._own.refresh(force=force):
            self._merge()

    def merge_shared(self) -> None:
        """Merges the suspects of other hosts that the claims thread has read. Does no I/O."""
        if self._shared and self._shared.others is not self._others:
            self._others = self._shared.others
            self._merge()

    def _merge(self) -> None:
        self._all = {**self._own.suspects}
        for place, suspect in self._others.items():
            if place not in self._all or suspect.deaths > self._all[place].deaths:
                self._all[place] = suspect

    def record_death(self, suspect: Suspect) -> None:
        """Notes in the crash journal that this suspect has ended one more process."""
        self._all[suspect.place] = suspect
        try:
            self._journal.write(suspect)
        except OSError as error:
            _LOG.warning(
                "a record ended the isolated process that ran it; this death cannot be saved in"
                f" state_dir ({error.strerror}), so it is forgotten at a restart",
                suspect="{}:{}:{}".format(*suspect.place),
            )

    def settled(self, records: Iterable[Record]) -> None:
        """Removes these records from the suspects, because all their outputs are durable."""
        for record in records if self._all else ():
            place = record.source.place
            if self._all.pop(place, None):
                self._journal.remove(place)
                if self._shared:
                    self._shared.settle(place)
