"""Dispatch: records go from the lanes to the handlers, and come back with an outcome.

Over 300 lines, since one file names every place where such a record can be.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Protocol, assert_never

from kworker.core.failure import Failure
from kworker.core.flow import Flow
from kworker.core.lanes import Lanes
from kworker.core.outcome import SKIPPED
from kworker.core.record import Partition, Record
from kworker.instance.rejections import Rejections
from kworker.worker.admission import Admission, CircuitOpen, Fail, Isolate, Run
from kworker.worker.endings import Endings
from kworker.worker.handlers.pool import Pool
from kworker.worker.handlers.stall_timer import StallTimer
from kworker.worker.idempotency.claim_client import ClaimClient
from kworker.worker.idempotency.unclaimed import Unclaimed
from kworker.worker.orphans import FinishedRun, LaneBusy, OrphanedRuns
from kworker.worker.quarantine.no_quarantine import NoQuarantine
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.retries.decider import RetryDecider


class Stage(Protocol):
    """A place where records wait or run between the lanes and their outcome."""

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Hands back the records of these partitions that have not begun."""

    def close(self, partition: Partition) -> list[Record]:
        """Forgets a closed partition; returns its records whose claims shall be released."""


class Dispatch:
    """Records that were taken and have no outcome. Owned by the poll thread.

    The first record of each lane is claimed, if there is idempotency; then it runs, a suspect
    in the quarantine and all others in the pool. `Admission` decides about both steps. Besides
    the lanes and the pool, the stages can hold such a record; one that was adopted has ended.
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
        """`tells_dead` is True for a source topic whose handler has a `dead`."""
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
        self._adopted: list[Record] = []  # have an outcome already, and end in the next turn
        self._shedding: Collection[Partition] = ()  # nothing of these begins
        self._stall_timer = StallTimer()

    def start(self) -> None:
        """Begins the claims thread, where there is one."""
        self._claims.start()

    # -- the poll loop's questions ----------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while handlers are at work."""
        return bool(self._in_pool)

    @property
    def waiting(self) -> bool:
        """True if something could run at once."""
        return self._lanes.ready or self.endings.waiting or bool(self._adopted)

    @property
    def awaiting_others(self) -> bool:
        """True while the claims thread or the isolated process will answer soon."""
        return self._claims.pending or self._quarantine.count > 0

    @property
    def suspects(self) -> int:
        """The number of suspects in the quarantine."""
        return self._quarantine.count

    @property
    def unguarded(self) -> int:
        """The number of records that ran without Redis, ever."""
        return self._claims.unprotected

    @property
    def problems(self) -> list[str]:
        """A line for each thing that is wrong now."""
        beside = [self._claims.problem, self._quarantine.problem]
        return [*self._decider.problems, *filter(None, beside)]

    @property
    def stalled_s(self) -> float:
        """Seconds for which the pool has ended nothing of what it had, or could have had."""
        return self._stall_timer.stalled_s

    def next_due(self) -> float | None:
        """Returns the time at which the next parked record runs again."""
        return self._lanes.next_due()

    def slack_s(self) -> float:
        """Returns the seconds for which the next outcomes can wait."""
        return self._pool.slack_s()

    # -- one turn ---------------------------------------------------------------------

    def turn(self, wait_s: float) -> list[Record]:
        """Returns the records that ended: their outcomes are `Publishable` or `Skipped`."""
        ended = self._pool.completed.take(wait_s)
        self._in_pool.difference_update(ended)
        now = self._clock()
        self._stall_timer.update(now, ended=bool(ended), has_work=self._has_work)
        self._quarantine.refresh(now)
        ended += self._quarantine.turn(now)
        if self._adopted:
            ended += self._adopted
            self._adopted = []
        finished = self.endings.judge(ended)
        self._wake(now)
        self._put_back_unstarted(now)
        finished += self._claim(now)
        if self._for_the_pool:
            self._pool.feed(self._take)
        return finished

    @property
    def _has_work(self) -> bool:
        return self._pool.has_work or self._for_the_pool

    @property
    def _for_the_pool(self) -> bool:
        """True if the pool could have something at once."""
        return bool(self.endings.on_dead or self._claims.ready)

    def _put_back_unstarted(self, now: float) -> None:
        if back := self._pool.reclaim(now):
            self._in_pool.difference_update(back)
            self.endings.put_back(back)
        if self._shedding:
            self._pool.flush()
            self._shed_late()

    # -- on the way to the handlers ---------------------------------------------------

    def _claim(self, now: float) -> list[Record]:
        """Claims the first records of lanes ahead of the handlers; returns what ended by that."""
        answers = self._claims.turn(now)
        for record, after_s in answers.busy:
            self._lanes.park(record, now + after_s)
        for record, why in answers.rejected:
            self.endings.fail(record, Failure("reject", message=why))
        for record in answers.duplicates:
            record.outcome = SKIPPED
        if self.rejections.any:
            self.rejections.settled(answers.duplicates)
        while self._lanes.ready and (room := self._claims.room()):
            self._claims.claim(self._admitted(self._lanes.take(room), self._may_be_claimed))
        return self.endings.finish([*answers.duplicates, *answers.with_kept_outcome])

    def _take(self, most: int) -> deque[Record]:
        """Takes the next records for the pool, as many as may run there."""
        if on_dead := self.endings.on_dead:
            run = deque([on_dead.popleft() for _ in range(min(most, len(on_dead)))])
        else:
            run = self._next(most)
        self._in_pool.update(run)
        return run

    def _next(self, most: int) -> deque[Record]:
        run = self._claims.take(most)
        while run and not self._admission.open:
            if admitted := deque(self._admitted(run, self._may_run)):
                return admitted
            run = self._claims.take(most)
        return run

    def _admitted(
        self, records: Iterable[Record], passes: Callable[[Record], bool]
    ) -> Iterable[Record]:
        return records if self._admission.open else [r for r in records if passes(r)]

    def _may_be_claimed(self, record: Record) -> bool:
        """Returns True for a record that runs once it is claimed, in the pool or the quarantine."""
        match self._admission.decide(record):
            case Isolate() | Run():
                self._orphans.begin(record)
                return True
            case other:
                self._keep_back(record, other)
                return False

    def _may_run(self, record: Record) -> bool:
        """Returns True for a record that runs in the pool."""
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
        if wakes := self._decider.wake(now, len(self._in_pool)):
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
        """Marks the events of these records done."""
        self._claims.settled(records)
        self._quarantine.settled(records)
        if self.rejections.any:
            self.rejections.settled(records)

    def settled_failures(self, retried: list[Record], dead: list[Record]) -> None:
        """Releases the events of retries and dead letters, which may run again."""
        records = [*retried, *dead]
        self._claims.released(records)
        self._quarantine.settled(records)
        if self.rejections.any:
            self.rejections.settled(dead)

    def outlived(self, records: list[Record]) -> None:
        """Takes records that ended and were not settled when their partitions were closed."""
        self._adopted += self.endings.ended_late(records)

    # -- partitions that come and go --------------------------------------------------

    def rebalanced(self) -> None:
        """Reads the crash journal again: an assignment may bring what another worker died of."""
        self._quarantine.refresh(self._clock(), force=True)

    def returned(self, owned: Collection[Partition]) -> None:
        """Opens all partitions of a new assignment, before any of their records comes."""
        for partition in owned:
            self._lanes.open(partition)
        self._orphans.returned(owned)

    def tidy(self) -> None:
        """Drops outcomes that nothing will ask for; to be called now and then."""
        if self._orphans:
            self._orphans.tidy()

    @property
    def shedding(self) -> Collection[Partition]:
        """The partitions of which nothing begins."""
        return self._shedding

    def shed(self, partitions: Collection[Partition]) -> None:
        """From now on nothing of these partitions begins, and of all others what may.

        Forgets what has not begun. What has begun goes on, which includes the halves of a batch
        that raised, and calls of `dead`.
        """
        self._shedding = partitions
        if not partitions:
            return
        going = set(partitions)
        # The pool first: what it has not begun goes back by way of the claims.
        back = self._pool.withdraw(going)
        self._in_pool.difference_update(back)
        self.endings.put_back(back)
        for stage in self._stages:
            self._lanes.put_back(stage.withdraw(going))
        self._drop_unbegun()

    def _shed_late(self) -> None:
        """Drops what has failed, was not attempted or came back since `shed`."""
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
        """Gives up a partition: its records in the pool count no more, unless it returns."""
        running = [record for record in self._in_pool if record.partition is partition]
        dropped, unheld = self._lanes.close(partition)
        self._flow.release(unheld)
        for stage in self._stages:
            dropped += stage.close(partition)
        self._orphans.take_over(running)
        # Claimed, and never to run here: the next owner must not wait for them.
        self._claims.cancelled(dropped)
        self._decider.forget(partition)
        self._flow.forget(partition)

    def abandon_suspects(self) -> None:
        """Ends the isolated process: what it still runs is delivered again."""
        abandoned = self._quarantine.abandon()
        self._flow.leave(abandoned)
        self._claims.released(abandoned)

    def end(self, deadline: float) -> None:
        """Sends the last marks to Redis, until a deadline; nothing runs any more."""
        self._claims.drain(deadline)
