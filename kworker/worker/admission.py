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
    """The circuit breaker of the record's handler is open: the record waits until it may run."""


class Isolate(NamedTuple):
    """The record must run in the isolated process: it is a suspect, or all records run there."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The record fails without a run of its handler."""

    failure: Failure


Decision = Run | Fail | CircuitOpen | FinishedRun | LaneBusy | Isolate

RUN, CIRCUIT_OPEN, ISOLATE = Run(), CircuitOpen(), Isolate()


class Admission:
    """Decides whether a record at the head of its lane may run now. Changes nothing.

    Owned by the poll thread. A lane is the queue of one key. Reasons against a run are checked in
    this order: an operator has rejected the record, the circuit breaker of its handler is open, a
    run from an earlier assignment still occupies the lane, the record must be isolated (it was in
    hand when its worker died, or all records are isolated for now).
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
        """True while every record may run, so that `decide` need not be called."""
        return not (
            self._decider.circuit_open
            or self._rejections.any
            or self._orphans
            or self._quarantine.isolates_any
        )

    def decide(self, record: Record) -> Decision:
        """Returns `Run` if the record may run now, else a decision that says what to do with it."""
        if (failure := self.rejected(record)) is not None:
            return Fail(failure)
        if not self._decider.may_run(record):
            return CIRCUIT_OPEN
        if self._orphans and (orphan := self._orphans.match(record)) is not None:
            return orphan
        return ISOLATE if self._quarantine.isolates(record) else RUN

    def rejected(self, record: Record) -> Failure | None:
        """Returns the failure of a record that an operator rejected; None for any other record."""
        if self._rejections.any and (by := self._rejections.by(record.source)):
            return Failure("operator", message=f"rejected by {by}")
        return None
