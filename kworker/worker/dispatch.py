"""Dispatch: records go from the lanes to the handlers, and come back with an outcome.

This file has over 300 lines, since it names every place where a record can be on that way.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Protocol, assert_never

from kworker.core.chunk import ChunkPart, ChunkRow
from kworker.core.durations import EndTimes
from kworker.core.failure import Failure
from kworker.core.flow import Flow
from kworker.core.lanes import Lanes
from kworker.core.outcome import DUPLICATE
from kworker.core.record import Partition, Record
from kworker.instance.rejections import Rejections
from kworker.instance.scoreboard import RecentLetter
from kworker.worker.admission import Admission, CircuitOpen, Fail, Isolate, Run
from kworker.worker.chunks import Chunks
from kworker.worker.endings import Endings
from kworker.worker.handlers.pool import Pool
from kworker.worker.handlers.stall_timer import StallTimer
from kworker.worker.idempotency.claim_client import ClaimClient
from kworker.worker.idempotency.unclaimed import Unclaimed
from kworker.worker.orphans import FinishedRun, LaneBusy, OrphanedRuns
from kworker.worker.publish.result_block import ResultBlock
from kworker.worker.quarantine.no_quarantine import NoQuarantine
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.retries.decider import RetryDecider


class Stage(Protocol):
    """Holds records that have left the queues of their keys and have no final outcome yet."""

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Hands back those records of these partitions whose runs have not begun."""

    def close(self, partition: Partition) -> list[Record]:
        """Forgets a revoked partition; returns its records whose claims in Redis must be freed."""


class Dispatch:
    """Takes records from the lanes to the handlers, and collects their outcomes.

    Owned by the poll thread. A lane is the queue of one key. The first record of each lane is
    claimed in Redis, if idempotency is configured. Then it runs: a suspect in the quarantine, any
    other record in the pool. `Admission` decides before the claim, and again before the run,
    whether the record may go on. While a record is neither in its lane nor in the pool, one of the
    `Stage`s holds it. A record that ran under an earlier assignment need not run again: the
    outcome of that run is adopted.
    """

    def __init__(
        self,
        pool: Pool,
        lanes: Lanes,
        flow: Flow,
        decider: RetryDecider,
        rejections: Rejections,
        quarantine: Quarantine | NoQuarantine,
        claims: ClaimClient | Unclaimed,
        tells_dead: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        """`tells_dead` returns True for a source topic whose handler has a method `dead`."""
        self._pool = pool
        self._lanes = lanes
        self._flow = flow
        self._decider = decider
        self.rejections = rejections
        self._quarantine = quarantine
        self._claims = claims
        self._clock = clock
        # With claims, Redis keeps the outcomes of those whose partition another member has.
        self._orphans = OrphanedRuns(keeps=not claims.keeps_outcomes)
        self._admission = Admission(rejections, decider, self._orphans, quarantine)
        self.endings = Endings(
            lanes,
            flow,
            self._admission,
            decider,
            self._orphans,
            quarantine,
            claims,
            tells_dead,
            clock,
        )
        self._stages: tuple[Stage, ...] = (quarantine, claims, self._orphans, self.endings)
        self._in_pool: set[Record] = set()
        # The pool has these, too.
        self._chunks = Chunks(lanes, flow, decider, allowed=pool.runs_chunks)
        self._parts: list[ChunkPart] = []  # of chunks: ended well, and not yet judged
        self._ended_parts: list[ChunkPart] = []  # are judged, and not yet taken
        self._adopted: list[Record] = []  # have an outcome already, and end in the next turn
        self._shedding: Collection[Partition] = ()  # nothing of these begins
        self._stall_timer = StallTimer()

    def start(self) -> None:
        """Starts the claims thread, if idempotency is configured."""
        self._claims.start()

    def isolate_all(self, seconds: float) -> None:
        """Runs all records in the isolated process until `seconds` after the first assignment."""
        self._quarantine.isolate_all(seconds)

    # -- the poll loop's questions ----------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while the handlers' pool has records."""
        return bool(self._in_pool or self._chunks)

    @property
    def waiting(self) -> bool:
        """True if the next turn can claim or run a record, or use the outcome of an earlier run."""
        ready = self._lanes.ready and not self._claims.suspended
        return ready or self.endings.waiting or bool(self._adopted or self._parts)

    @property
    def awaiting_others(self) -> bool:
        """True while an answer of the claims thread or the isolated process is due soon."""
        return self._claims.pending or self._quarantine.count > 0

    @property
    def suspects(self) -> int:
        """The number of suspects in the quarantine."""
        return self._quarantine.count

    @property
    def unguarded(self) -> int:
        """The number of records that ran without a claim because Redis did not answer."""
        return self._claims.unprotected

    @property
    def problems(self) -> list[str]:
        """One line for each present problem of handlers, Redis or the quarantine."""
        beside = [self._claims.problem, self._quarantine.problem]
        return [*self._decider.problems, *filter(None, beside)]

    @property
    def recent_letters(self) -> Iterable[RecentLetter]:
        """The last dead letters, the newest at the end."""
        return self._decider.recent_letters

    @property
    def stalled_s(self) -> float:
        """The seconds since the pool last ended a record or was last idle.

        The later of these two times counts.
        """
        return self._stall_timer.stalled_s

    def next_due(self) -> float | None:
        """Returns the monotonic time at which the next waiting record is tried again.

        Returns None if no record waits.
        """
        return self._lanes.next_due()

    @property
    def asking(self) -> bool:
        """True while an answer about claims is awaited."""
        return self._claims.asking

    @property
    def run_times(self) -> list[int]:
        """A histogram of how long runs in the pool took: counts, then the sum of times (in µs)."""
        return self._pool.completed.run_times()

    @property
    def wait_times(self) -> list[int]:
        """A histogram of waits from intake to first run: counts, then the sum of waits (in µs)."""
        return self._pool.completed.wait_times()

    @property
    def redis_calls(self) -> EndTimes:
        """The number and total time of answered calls to Redis, and the same of failed calls."""
        return self._claims.calls

    def slack_s(self) -> float:
        """Returns the seconds for which the poll loop may leave outcomes in the pool."""
        return self._pool.slack_s()

    # -- one turn ---------------------------------------------------------------------

    def turn(self, wait_s: float) -> list[Record]:
        """Collects outcomes and starts runs; returns the records whose outcome is final.

        A final outcome is results, a retry, a dead letter or `Skipped`. Waits up to `wait_s`
        seconds for the first outcome.
        """
        ended = self._pool.completed.take(wait_s)
        self._leave_pool(ended)
        now = self._clock()
        self._stall_timer.update(now, ended=bool(ended or self._parts), has_work=self._has_work)
        self._quarantine.refresh(now)
        ended += self._quarantine.turn(now)
        if self._adopted:
            ended += self._adopted
            self._adopted = []
        finished = self.endings.judge([*self._judge_parts(), *ended])
        self._chunks.ended(finished)
        self._wake(now)
        self._put_back_unstarted(now)
        if claimed := self._claim(now):
            finished = [*finished, *claimed]
        self._merge_or_split()  # also if nothing is ready: it may be what waits in merged lanes
        if self._for_the_pool:
            self._pool.feed(self._take)
        return finished

    def take_parts(self) -> list[ChunkPart]:
        """Returns those parts of chunks that have ended well. Called after `turn`."""
        ended, self._ended_parts = self._ended_parts, []
        return ended

    def _judge_parts(self) -> list[Record]:
        """Ends what was collected of chunks; returns what is to be judged as single records."""
        parts, self._parts = self._parts, []
        if not parts:
            return []
        if self._admission.open and self._chunks.end(parts):
            self._ended_parts = parts
            return []
        return [record for part in parts for record in part.records()]

    def _leave_pool(self, records: list[Record]) -> None:
        """Notes that the pool has returned records; collects what has become of its chunks."""
        if self._chunks:
            collected = self._chunks.collect()
            self._parts += collected.parts
            self._in_pool.update(collected.records)
        self._in_pool.difference_update(records)

    @property
    def _has_work(self) -> bool:
        return self._pool.has_work or self._for_the_pool

    @property
    def _for_the_pool(self) -> bool:
        """True if records are ready to be handed to the pool."""
        return bool(self.endings.on_dead or self._claims.ready)

    def _put_back_unstarted(self, now: float) -> None:
        if back := self._pool.reclaim(now):
            self._leave_pool(back)
            self.endings.put_back(back)
        if self._shedding:
            self._pool.flush()
            self._shed_late()

    # -- on the way to the handlers ---------------------------------------------------

    def _claim(self, now: float) -> list[Record]:
        """Requests a claim for the next record of each key; returns records that need no run."""
        answers = self._claims.turn(now)
        for record, after_s in answers.busy:
            self._lanes.park(record, now + after_s)
        for record, why in answers.rejected:
            self.endings.fail(record, Failure("reject", message=why))
        for record in answers.duplicates:
            record.outcome = DUPLICATE
        if self.rejections.any:
            self.rejections.settled(answers.duplicates)
        while self._lanes.ready and (room := self._claims.room()):
            self._claims.claim(self._admitted(self._lanes.take(room), self._may_be_claimed))
        return self.endings.finish([*answers.duplicates, *answers.with_kept_outcome])

    def _take(self, most: int) -> deque[Record] | ChunkRow:
        """Returns up to `most` records that the pool shall run now."""
        if on_dead := self.endings.on_dead:
            run = deque([on_dead.popleft() for _ in range(min(most, len(on_dead)))])
        else:
            self._merge_or_split()  # the pool may have learned what a record costs
            if row := self._lanes.take_chunks(most):
                self._chunks.add(row)
                return row
            run = self._next(most)
        self._in_pool.update(run)
        return run

    def _next(self, most: int) -> deque[Record]:
        run = self._claims.take(most)
        while run and not self._admission.open:
            if admitted := deque(self._admitted(run, self._may_run)):
                return admitted
            run = self._claims.take(most)
        if self._pool.runs_in_order and 0 < len(run) < most:
            return self._claims.take_behind(run, most - len(run))
        return run

    def _merge_or_split(self) -> None:
        in_rows = self._pool.one_is_enough and self._claims.takes_rows and self._admission.open
        self._lanes.set_merged(in_rows, self._clock())

    def _admitted(
        self, records: Iterable[Record], passes: Callable[[Record], bool]
    ) -> Iterable[Record]:
        return records if self._admission.open else [r for r in records if passes(r)]

    def _may_be_claimed(self, record: Record) -> bool:
        """Returns True if the record may run once it is claimed.

        Otherwise fails the record, uses the outcome of its earlier run, or lets it wait.
        """
        match self._admission.decide(record):
            case Isolate() | Run():
                self._orphans.begin(record)
                return True
            case other:
                self._keep_back(record, other)
                return False

    def _may_run(self, record: Record) -> bool:
        """Returns True if the record may run in the pool.

        Otherwise the record goes to the quarantine (if it is a suspect), fails, gets the outcome of
        its earlier run, or waits.
        """
        match self._admission.decide(record):
            case Run():
                self._orphans.begin(record)
                return True
            case Isolate():
                self._orphans.begin(record)
                self._quarantine.add((record,))
            case other:
                self._keep_back(record, other)
        return False

    def _keep_back(
        self, record: Record, decision: Fail | CircuitOpen | FinishedRun | LaneBusy
    ) -> None:
        match decision:
            case Fail(failure):
                self.endings.fail(record, failure)
            case CircuitOpen():
                self._decider.set_aside(record)
                self._lanes.park(record, inf)
            case FinishedRun():
                self._adopted.append(self._orphans.adopt(decision, record))
            case LaneBusy():
                self._orphans.wait(record)
            case _:
                assert_never(decision)

    def _wake(self, now: float) -> None:
        woken = self._lanes.wake(now) if self._lanes.parked else []
        if wakes := self._decider.wake(now, len(self._in_pool) + len(self._chunks)):
            # A record whose outputs its topic refused does not run again: they are written.
            self._adopted += self._lanes.pull(r for r in wakes if r.outcome is not None)
            woken += self._lanes.recall(r for r in wakes if r.outcome is None)
        if self.rejections.refresh(now):
            rejected = [r for r in self._lanes.all_parked() if self.rejections.by(r.source)]
            woken += self._lanes.recall(rejected)
        if woken and self._flow.held:
            for record in woken:
                self._flow.release((record, *self._lanes.behind(record)))

    # -- all that they led to is durable ----------------------------------------------

    def settled(self, records: list[Record]) -> None:
        """Notes in Redis and in the crash journal that these records are done.

        Called once all outputs of these records are durable.
        """
        self._claims.settled(records)
        self._quarantine.settled(records)
        if self.rejections.any:
            self.rejections.settled(records)

    def settled_blocks(self, blocks: Iterable[ResultBlock]) -> None:
        """Does what `settled` does, with the records of blocks. None of these has a claim."""
        if not self._admission.open:  # else there are no suspects, and nothing is rejected
            self.settled([record for block in blocks for record in block.records()])

    def settled_failures(self, retried: list[Record], dead: list[Record]) -> None:
        """Releases the claims of records whose retries or dead letters are durable.

        The event of such a record is not done: a worker may claim it again later.
        """
        records = [*retried, *dead]
        self._claims.released(records)
        self._quarantine.settled(records)
        if self.rejections.any:
            self.rejections.settled(dead)

    def outlived(self, records: list[Record]) -> None:
        """Decides about outcomes that were not durable before their partitions were revoked.

        If a partition came back and its record was delivered again, the outcome is adopted. Any
        other outcome is left to the partition's next owner, or dropped.
        """
        self._adopted += self.endings.ended_late(records)

    # -- partitions that come and go --------------------------------------------------

    def rebalanced(self) -> None:
        """Rereads the crash journal, because the new partitions may hold suspects."""
        self._quarantine.refresh(self._clock(), force=True)

    def returned(self, owned: Collection[Partition]) -> None:
        """Notes the partitions that this worker owns after a new assignment.

        Each partition gets back the lanes that it had in an earlier assignment, if they still
        exist. Called before new records are delivered.
        """
        for partition in owned:
            self._lanes.open(partition)
        self._orphans.returned(owned)

    def tidy(self) -> None:
        """Drops outcomes that are not needed any more.

        These come from runs that began under an earlier assignment. Their records will not be
        delivered again.
        """
        if self._orphans:
            self._orphans.tidy()

    @property
    def shedding(self) -> Collection[Partition]:
        """The partitions whose records are not started at present."""
        return self._shedding

    def shed(self, partitions: Collection[Partition]) -> None:
        """Stops starting records of these partitions. Records of all other partitions may start.

        Forgets the records of these partitions whose runs have not begun. Runs that have begun go
        on. If a batch fails, its parts are still run again. If a record fails for good, the method
        `dead` of its handler is still called.
        """
        self._shedding = partitions
        if not partitions:
            return
        going = set(partitions)
        # The pool first: what it has not begun goes back by way of the claims.
        back = self._pool.withdraw(going)
        self._leave_pool(back)
        self.endings.put_back(back)
        for stage in self._stages:
            self._lanes.put_back(stage.withdraw(going))
        self._drop_unbegun()

    def _shed_late(self) -> None:
        """Drops records that became ready after `shed` was called.

        Only records of the partitions that were passed to `shed` are dropped.
        """
        self._lanes.put_back(self._quarantine.withdraw(self._shedding))
        if self._lanes.ready or self._lanes.parked:
            self._drop_unbegun()

    def _drop_unbegun(self) -> None:
        for partition in self._shedding:
            dropped, unheld = self._lanes.drop(partition)
            self._claims.cancelled(dropped)
            self._flow.drop(dropped)
            self._flow.release(unheld)

    def close(self, partition: Partition) -> None:
        """Gives up a partition.

        Its runs in the pool go on. Their outcomes are used if the partition is assigned to this
        worker again or, with idempotency, by the partition's next owner. If the isolated process
        runs a record of the partition, this process is killed.
        """
        dropped, unheld = self._lanes.close(partition)
        self._leave_pool([])  # chunks are broken up now
        running = [record for record in self._in_pool if record.partition is partition]
        self._flow.release(unheld)
        for stage in self._stages:
            dropped += stage.close(partition)
        self._orphans.take_over(running)
        # Claimed, and never to run here: the next owner must not wait for them.
        self._claims.cancelled(dropped)
        self._decider.forget(partition)
        self._flow.forget(partition)

    def abandon_suspects(self) -> None:
        """Ends the isolated process; suspects without an outcome are delivered again."""
        abandoned = self._quarantine.abandon()
        self._flow.leave(abandoned)
        self._claims.released(abandoned)

    def hand_over(self, records: list[Record]) -> None:
        """Leaves the results of ended records in Redis to the next owners of their partitions.

        The next owners publish these results. Without idempotency, nothing is left for them, and
        they run the records again.
        """
        self._claims.hand_over(records)

    def end(self, deadline: float) -> None:
        """Sends the last changes of claims to Redis; waits for this until `deadline` at most.

        Called when no handler runs any more.
        """
        self._claims.drain(deadline)
