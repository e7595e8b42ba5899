"""Admission: may the first record of a lane run now, and what is in its way if not."""

from dataclasses import dataclass
from typing import NamedTuple

from kworker.core.failure import Failure
from kworker.core.record import Record
from kworker.instance.rejections import Rejections
from kworker.worker.orphans import FinishedRun, LaneBusy, OrphanedRuns
from kworker.worker.quarantine.no_quarantine import NoQuarantine
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.retries.decider import RetryDecider


class Run(NamedTuple):
    """The record may run in the pool."""


class CircuitOpen(NamedTuple):
    """The circuit of its handler is open: the record waits until that closes, or probes."""


class Isolate(NamedTuple):
    """The record is suspected of a crash, and runs in the quarantine."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The record fails without a run."""

    failure: Failure


Decision = Run | Fail | CircuitOpen | FinishedRun | LaneBusy | Isolate

RUN, CIRCUIT_OPEN, ISOLATE = Run(), CircuitOpen(), Isolate()


class Admission:
    """Decides about records whose turn in their lane has come. Changes nothing.

    Owned by the poll thread. The reasons are looked at in one order: a person rejected the
    record, the circuit of its handler is open, a run of an earlier epoch is in its lane, and
    the record is a suspect.
    """

    def __init__(
        self,
        rejections: Rejections,
        decider: RetryDecider,
        orphans: OrphanedRuns,
        quarantine: Quarantine | NoQuarantine,
    ) -> None:
        self._rejections = rejections
        self._decider = decider
        self._orphans = orphans
        self._quarantine = quarantine

    @property
    def open(self) -> bool:
        """True while any record may run, so that none need be decided about."""
        return not (
            self._decider.circuit_open
            or self._rejections.any
            or self._orphans
            or self._quarantine.has_suspects
        )

    def decide(self, record: Record) -> Decision:
        """Returns `Run`, or what becomes of the record instead."""
        if (failure := self.rejected(record)) is not None:
            return Fail(failure)
        if not self._decider.may_run(record):
            return CIRCUIT_OPEN
        if self._orphans and (orphan := self._orphans.match(record)) is not None:
            return orphan
        return ISOLATE if self._quarantine.is_suspect(record) else RUN

    def rejected(self, record: Record) -> Failure | None:
        """Returns the failure of a record that a person rejected; None of any other."""
        if self._rejections.any and (by := self._rejections.by(record.source)):
            return Failure("operator", message=f"rejected by {by}")
        return None
