"""Endings: what follows when a handler returns or raises.

Either the record gets its final outcome, or it waits in memory for another run or for a call of its
handler's method `dead`. It runs again when its retry is due, when its handler's circuit breaker
closes, or when the dead-letter limit holds it back no more.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import assert_never

from kworker.core.batch import NOT_ATTEMPTED, NotAttempted
from kworker.core.failure import Described, Failure
from kworker.core.flow import Flow
from kworker.core.lanes import Lanes
from kworker.core.outcome import (
    DeadLettered,
    Failed,
    OnDeadCall,
    PlainResult,
    Results,
    RetryScheduled,
    Skipped,
    Succeeded,
    TooLarge,
    Unpublishable,
    outputs_of,
)
from kworker.core.record import Partition, Record
from kworker.core.record_groups import (
    WithoutResults,
    all_ended_well,
    all_without_results,
    by_partition,
)
from kworker.worker.admission import Admission
from kworker.worker.idempotency.claim_client import ClaimClient
from kworker.worker.idempotency.unclaimed import Unclaimed
from kworker.worker.orphans import OrphanedRuns
from kworker.worker.quarantine.no_quarantine import NoQuarantine
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.retries.decider import HeldFailure, RetryDecider

# Failures of runs that ended their process: telling the handler could end this one, too.
_DANGEROUS = ("crashed", "timeout")


class Endings:
    """Turns ended runs, and records that ended before they could run, into outcomes.

    Owned by the poll thread. A record that ends frees its lane (the queue of its key) and is in
    flight no more. A record that will run again waits in its lane.
    """

    def __init__(
        self,
        lanes: Lanes,
        flow: Flow,
        admission: Admission,
        decider: RetryDecider,
        orphans: OrphanedRuns,
        quarantine: Quarantine | NoQuarantine,
        claims: ClaimClient | Unclaimed,
        tells_dead: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        """`tells_dead` returns True for a source topic whose handler has a method `dead`."""
        self._lanes = lanes
        self._flow = flow
        self._admission = admission
        self._decider = decider
        self._orphans = orphans
        self._quarantine = quarantine
        self._claims = claims
        self._tells_dead = tells_dead
        self._clock = clock
        self._ended_early: list[Record] = []
        self.on_dead: deque[Record] = deque()  # wait for the pool to call their handler's `dead`
        self.oversized: list[Record] = []  # ended with more than a topic took; measured again later
        self.failed = 0  # runs, ever

    @property
    def waiting(self) -> bool:
        """True if a record waits for `judge`, or for a call of its handler's method `dead`."""
        return bool(self._ended_early or self.on_dead)

    # -- the ends of runs -------------------------------------------------------------

    def judge(self, ended: list[Record]) -> list[Record]:
        """Decides what follows for records that ran, and for records that ended without a run.

        Returns the records whose outcome is final: results, a retry, a dead letter or `Skipped`.
        """
        if not ended and not self._ended_early:
            return []
        done, groups = ended, by_partition(ended)
        if not all(partition.open for partition, _ in groups):
            done = [record for record in ended if record.partition.open]
            done += self.ended_late([record for record in ended if not record.partition.open])
            groups = by_partition(done)
        others: list[Record] = []
        if all_without_results(done):
            done = WithoutResults(done, groups)
        elif not all_ended_well(done):
            others = [record for record in done if not isinstance(record.outcome, Succeeded)]
            done = [record for record in done if isinstance(record.outcome, Succeeded)]
        self._decider.succeeded(done)
        # First, for a record that succeeded may have one of the others behind it in its lane.
        self.finish(done)
        if others or self._ended_early:
            done = [*done, *self.finish(self._judge_others(others))]
        return done

    def ended_late(self, records: list[Record]) -> list[Record]:
        """Sorts records that ended after their partitions were revoked; returns the adopted ones.

        A record is adopted if its partition came back and the record was delivered again: then its
        outcome is used. Any other outcome is kept for a redelivery, in memory or (with idempotency)
        in Redis, unless it is of no use, e.g. because the record is known to be done.
        """
        ends = self._orphans.ended(records)
        self._lanes.put_back(ends.freed)
        self._claims.cancelled([r for r in ends.useless if r.outcome is NOT_ATTEMPTED])
        begun = [r for r in ends.useless if r.outcome is not NOT_ATTEMPTED]
        self._claims.released([r for r in begun if self._orphans.is_superseded(r)])
        self._claims.hand_over([r for r in begun if not self._orphans.is_superseded(r)])
        return ends.adopted

    def put_back(self, records: list[Record]) -> None:
        """Takes back records that the pool did not begin.

        Those whose partition was revoked do not run here: their outcome is `NOT_ATTEMPTED`.
        """
        back = [record for record in records if record.partition.open]
        # The handler has ended with these; its `dead` is called before others run.
        on_dead = [record for record in back if record.on_dead is not None]
        if on_dead:
            self.on_dead.extendleft(reversed(on_dead))
            back = [record for record in back if record.on_dead is None]
        self._claims.put_back(back)
        if len(back) + len(on_dead) < len(records):
            late = [record for record in records if not record.partition.open]
            for record in late:
                record.outcome = NOT_ATTEMPTED
            self.ended_late(late)

    def finish(self, records: list[Record]) -> list[Record]:
        """Frees the lanes of ended records, so that the next ones may run; returns the records."""
        groups = by_partition(records)
        self._lanes.finish(records, groups)
        self._flow.leave_grouped(groups)
        return records

    def _judge_others(self, others: list[Record]) -> list[Record]:
        """Decides what follows for `others`, which are the records that did not end well.

        Does the same for records that ended before they could run. Returns the records whose
        outcome is final.
        """
        early, self._ended_early = self._ended_early, []
        return [record for record in [*others, *early] if self._has_ended(record)]

    def _has_ended(self, record: Record) -> bool:
        match record.outcome:
            case Failed(error) if type(error) is TooLarge and error.outputs:
                record.outcome = Results(error.outputs)
                self._decider.succeeded([record])
                self.oversized += self.finish([record])
                return False
            case Failed(error):
                return self._failure_ends(record, error)
            case NotAttempted():
                record.outcome = None
                self._lanes.put_back((record,))
                return False
            case Results() | PlainResult() | RetryScheduled() | DeadLettered() | Skipped():
                return True
            case None:
                raise AssertionError(
                    f"the run of {record.source} ended without an outcome: a bug in kworker"
                )
            case outcome:
                assert_never(outcome)

    # -- failures ---------------------------------------------------------------------

    def end_early(self, records: Iterable[Record]) -> None:
        """Keeps, for `judge`, records that were `Failed` or `Skipped` before they were queued."""
        self._ended_early += records

    def fail(self, record: Record, failure: Failure) -> None:
        """Fails a record without a run of its handler."""
        record.outcome = Failed(Described(failure))
        self._ended_early.append(record)

    def refused(self, record: Record, why: str) -> None:
        """Fails a record whose outputs a topic refuses for good.

        The record is in flight again until `judge` has handled the failure.
        """
        self._decider.refused(record)
        record.lane = None  # which has gone on
        self._flow.enter(record.partition, (record.memory_bytes,))
        outputs = outputs_of(record.outcome) if isinstance(record.outcome, Succeeded) else None
        record.outcome = Failed(Unpublishable(why, outputs))
        self._ended_early.append(record)

    def shorten(self, record: Record) -> bool:
        """Cuts a retry or dead letter to its topic's size limit; returns False if it cannot fit."""
        return self._decider.shorten(record)

    def accept_dead(self) -> list[Record]:
        """Lets records that the dead-letter limit holds back become dead letters.

        Returns those whose outcome is final. The others wait for a call of their handler's `dead`.
        """
        held = {each.record: each for each in self._decider.accept_dead()}
        # Only these still wait: a rejected record is on its way already, a shed one is dropped.
        accepted = self._lanes.pull(held)
        return self.finish([record for record in accepted if self._accept(held[record])])

    def _accept(self, held: HeldFailure) -> bool:
        letter = self._decider.dead_letter(held, self._clock())
        return self._dies(held.record, Described(held.failure), letter)

    def _failure_ends(self, record: Record, error: BaseException) -> bool:
        """Decides what follows a failed run; returns True if the record's outcome is final.

        Reading the handler's exception may raise another exception, which then is the failure.
        """
        self.failed += 1
        try:
            return self._decide(record, error)
        except BaseException as raised:  # noqa: BLE001 - an exception of the user's may raise anything
            failure = Failure.unreadable(raised, "how its handler failed cannot be read")
            return self._decide(record, Described(failure.with_stack(raised)))

    def _decide(self, record: Record, error: BaseException) -> bool:
        record.outcome = None
        if (rejected := self._admission.rejected(record)) is not None:
            error = Described(rejected)
        match self._decider.judge(record, error, self._clock()):
            case float(due):
                if isinstance(error, Unpublishable) and error.outputs:
                    record.outcome = Results(error.outputs)
                self._park(record, due)
                return False
            case DeadLettered() as letter:
                return self._dies(record, error, letter)
            case letter:
                record.outcome = letter
                return True

    def _dies(self, record: Record, error: BaseException, letter: DeadLettered) -> bool:
        """Ends a record with a dead letter; returns False if its handler's `dead` is called first.

        Then the record comes back to `judge` after that call.
        """
        if self._calls_dead(record, error):
            record.outcome = None
            record.on_dead = OnDeadCall(error, letter)
            self.on_dead.append(record)
            return False
        record.outcome = letter
        return True

    def _calls_dead(self, record: Record, error: BaseException) -> bool:
        """Returns True if the handler has a method `dead` that is safe to call in this process.

        For a suspect it is not safe: its run, or a call of `dead` for it, may have killed a worker.
        """
        if not self._tells_dead(record.source.topic):
            return False
        dangerous = Failure.of(error).kind in _DANGEROUS
        return not (dangerous or self._quarantine.is_suspect(record))

    def _park(self, record: Record, due: float) -> None:
        if due == inf:
            self._lanes.park(record, inf)
        else:
            self._flow.hold(self._lanes.hold(record, due))

    # -- partitions that go -----------------------------------------------------------

    def withdraw(self, going: Collection[Partition]) -> list[Record]:  # noqa: ARG002 - a stage
        """Returns an empty list, because all records that wait in `Endings` have run or failed.

        Their failures are still handled, and the `dead` methods of their handlers still called.
        """
        return []

    def close(self, partition: Partition) -> list[Record]:
        """Removes and returns the records of a revoked partition that still wait for `judge`."""
        gone = [record for record in self._ended_early if record.partition is partition]
        self._ended_early = [r for r in self._ended_early if r.partition is not partition]
        return gone
