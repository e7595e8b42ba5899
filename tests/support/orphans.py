"""Orphaned runs, asked and acted on as the dispatch does."""

from kworker.core.record import Partition, Record
from kworker.worker.orphans import FinishedRun, LaneBusy, OrphanedRuns


def leave(orphans: OrphanedRuns, partition: Partition, running: list[Record]) -> None:
    """The partition is closed, and these of its records still run."""
    orphans.close(partition)
    orphans.take_over(running)


def meet(orphans: OrphanedRuns, record: Record) -> Record | None:
    """The run that counts for a record, its own or an orphan; None while it waits."""
    match orphans.match(record):
        case FinishedRun() as finished:
            return orphans.adopt(finished, record)
        case LaneBusy():
            orphans.wait(record)
            return None
        case None:
            orphans.begin(record)
            return record
