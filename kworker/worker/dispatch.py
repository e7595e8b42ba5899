"""From the lanes to the handlers and back: what may run runs, what failed is judged."""

from collections import deque
from collections.abc import Callable, Collection
from math import inf
from typing import Protocol

from kworker.core.batch import NOT_ATTEMPTED, NotAttempted
from kworker.core.failure import Described, Failure
from kworker.core.flow import Flow
from kworker.core.lanes import Lanes
from kworker.core.outcome import (
    SKIPPED,
    DeadLettered,
    Failed,
    OnDeadCall,
    Results,
    TooLarge,
    Unpublishable,
)
from kworker.core.record import Partition, Record
from kworker.instance.rejections import Rejections
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.stall_timer import StallTimer
from kworker.worker.handlers.thread_pool import Take
from kworker.worker.idempotency.claim_client import ClaimClient
from kworker.worker.orphans import OrphanedRuns
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.retries.decider import RetryDecider


class Pool(Protocol):
    """Threads or a loop that run handlers."""

    completed: CompletionQueue

    @property
    def has_work(self) -> bool: ...
    def feed(self, take: Take) -> int: ...
    def slack_s(self) -> float: ...
    def reclaim(self, now: float) -> list[Record]: ...
    def withdraw(self, going: Collection[Partition]) -> list[Record]: ...
    def flush(self) -> None: ...


class Dispatch:
    """What has been taken and has no outcome. Owned by the poll thread.

    Heads of lanes are claimed first, if there is a claimant; then they run, suspects in the
    ward and all others in the pool. What a person rejected, and what its route cannot
    serve now, is held back before either; so is what still runs for an earlier epoch.
    """

    def __init__(
        self,
        pool: Pool,
        lanes: Lanes,
        flow: Flow,
        triage: RetryDecider,
        refusals: Rejections,
        ward: Quarantine | None,
        claimant: ClaimClient | None,
        tells_dead: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._lanes = lanes
        self._flow = flow
        self._triage = triage
        self._refusals = refusals
        self._ward = ward
        self._claimant = claimant
        self._tells_dead = tells_dead
        self._clock = clock
        self._out: set[Record] = set()  # in the pool
        # Without claims; with them, others ask for what nobody here waits for.
        self._outliving = OrphanedRuns(keeps=claimant is None)
        self._taken_up: list[Record] = []  # from there: ended, and of a present epoch again
        self._in_ward: set[Record] = set()
        self._doomed: list[Record] = []  # failed before they could run
        self._to_tell: deque[Record] = deque()  # their handlers hear that they die
        self._shedding: Collection[Partition] = ()  # nothing of these begins
        self._stillness = StallTimer()
        self.large: list[Record] = []  # ended with more than a topic took; to be measured again
        self.failed = 0  # runs, ever

    def start(self) -> None:
        """Begins the claims thread, where there is one."""
        if self._claimant is not None:
            self._claimant.start()

    # -- what the poller asks ---------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Handlers are at work."""
        return bool(self._out)

    @property
    def waiting(self) -> bool:
        """Something could run at once."""
        return self._lanes.ready or bool(self._doomed or self._to_tell or self._taken_up)

    @property
    def restless(self) -> bool:
        """Others are at work for it: look again soon."""
        claims = self._claimant is not None and self._claimant.pending
        return claims or bool(self._in_ward)

    @property
    def suspects(self) -> int:
        return len(self._in_ward)

    @property
    def unguarded(self) -> int:
        """Records that ran without Redis, ever."""
        return self._claimant.unprotected if self._claimant else 0

    @property
    def reasons(self) -> list[str]:
        """What is wrong now, a line each."""
        claims = self._claimant.problem if self._claimant else None
        ward = self._ward.problem if self._ward else ""
        return [*self._triage.problems, *filter(None, [claims, ward])]

    @property
    def still_s(self) -> float:
        """For how long the pool has ended nothing of what it had, or could have had."""
        return self._stillness.stalled_s

    def next_due(self) -> float | None:
        """When the next parked record runs again."""
        return self._lanes.next_due()

    def slack_s(self) -> float:
        """For how long the next outcomes can wait."""
        return self._pool.slack_s()

    # -- one turn ---------------------------------------------------------------------

    def turn(self, wait_s: float) -> list[Record]:
        """Returns the records that ended: their outcomes are `Publishable` or `Skipped`."""
        ended = self._pool.completed.take(wait_s)
        self._out.difference_update(ended)
        now = self._clock()
        self._stillness.update(now, ended=bool(ended), has_work=self._owing)
        if self._ward is not None:
            ended += self._from_ward(self._ward, now)
        if self._taken_up:
            ended += self._taken_up
            self._taken_up = []
        finished = self._end(ended) if ended or self._doomed else []
        self._wake(now)
        if back := self._pool.reclaim(now):
            self._out.difference_update(back)
            self._put_back(back)
        if self._shedding:
            self._pool.flush()
            self._shed_late()
        if self._claimant is not None:
            finished += self._claim(self._claimant, now)
        if self._for_the_pool:
            self._pool.feed(self._take)
        return finished

    @property
    def _owing(self) -> bool:
        return self._pool.has_work or self._for_the_pool

    @property
    def _for_the_pool(self) -> bool:
        """It could have something at once."""
        ready = self._claimant.ready if self._claimant else self._lanes.ready
        return bool(self._to_tell or ready)

    def doom(self, records: list[Record]) -> None:
        """Records that failed before they came to a lane: their outcome is Failed."""
        self._doomed += records

    def refused(self, record: Record, why: str) -> None:
        """A topic takes never what it led to: it is in flight again, and dies of that."""
        self._triage.refused(record)
        record.lane = None  # which has gone on
        self._flow.enter(record.partition, (record.memory_bytes,))
        outputs = record.outcome.outputs if isinstance(record.outcome, Results) else None
        record.outcome = Failed(Unpublishable(why, outputs))
        self._doomed.append(record)

    def shorten(self, record: Record) -> bool:
        """Whether its letter could be cut to what its topic takes now."""
        return self._triage.shorten(record)

    @property
    def refusing(self) -> bool:
        """Whether a person wants any record dead."""
        return self._refusals.any

    def is_rejected(self, record: Record) -> bool:
        """Whether a person wants this record dead, and it can be."""
        dead = isinstance(record.outcome, DeadLettered)
        return not dead and bool(self._refusals.by(record.source))

    def accept_dead(self) -> list[Record]:
        """What the breaker holds ends as dead letters: those records."""
        accepted = self._triage.accept_dead(self._clock())
        self._lanes.pull(accepted)
        return self._finish(accepted)

    # -- on the way there -------------------------------------------------------------

    def _claim(self, claimant: ClaimClient, now: float) -> list[Record]:
        """Asks for heads of lanes, and hears what became of others: those that ended by it."""
        answers = claimant.turn(now)
        for record, after_s in answers.busy:
            self._lanes.park(record, now + after_s)
        for record, why in answers.rejected:
            self._doom(record, Failure("reject", message=why))
        for record in answers.duplicates:
            record.outcome = SKIPPED
        if self._refusals.any:
            self._refusals.settled(answers.duplicates)
        while self._lanes.ready and (room := claimant.room()):
            run = self._lanes.take(room)
            claimant.claim(r for r in run if self._passes(r) and not self._outlived_by(r))
        return self._finish([*answers.duplicates, *answers.with_kept_outcome])

    def _take(self, most: int) -> deque[Record]:
        """The next records for the pool, as many as may run there."""
        if self._to_tell:
            told = min(most, len(self._to_tell))
            run = deque([self._to_tell.popleft() for _ in range(told)])
        else:
            run = self._next(most)
        self._out.update(run)
        return run

    def _next(self, most: int) -> deque[Record]:
        following = self._claimant.take if self._claimant else self._lanes.take
        run = following(most)
        while run and (
            self._triage.circuit_open or self._refusals.any or self._suspecting or self._outliving
        ):
            passing = deque(r for r in run if self._passes(r) and not self._apart(r))
            if passing:
                return passing
            run = following(most)
        return run

    def _passes(self, record: Record) -> bool:
        """Whether a record may run; if not, it waits, or is doomed."""
        if self._refusals.any and (by := self._refusals.by(record.source)):
            self._doom(record, _rejected(by))
            return False
        if not self._triage.may_run(record):
            self._triage.set_aside(record)
            self._lanes.park(record, inf)
            return False
        return True

    @property
    def _suspecting(self) -> bool:
        return self._ward is not None and self._ward.has_suspects

    def _outlived_by(self, record: Record) -> bool:
        """Whether a run of an earlier epoch is in its way, or in its place."""
        if not self._outliving or (run := self._outliving.meet(record)) is record:
            return False
        if run is not None:
            self._taken_up.append(run)
        return True

    def _apart(self, record: Record) -> bool:
        """Whether a record waits for an earlier epoch, or is a suspect, which the ward runs."""
        # With claims, those were held back before any was asked for.
        if self._claimant is None and self._outlived_by(record):
            return True
        if self._ward is None or not self._ward.is_suspect(record):
            return False
        self._in_ward.add(record)
        self._ward.add((record,))
        return True

    def _wake(self, now: float) -> None:
        woken = self._lanes.wake(now) if self._lanes.parked else []
        if wakes := self._triage.wake(now, len(self._out)):
            # What its topic refused is not run again, but written.
            self._taken_up += self._lanes.pull(r for r in wakes if r.outcome is not None)
            woken += self._lanes.recall(r for r in wakes if r.outcome is None)
        if self._refusals.refresh(now):
            rejected = [r for r in self._lanes.all_parked() if self._refusals.by(r.source)]
            woken += self._lanes.recall(rejected)
        if woken and self._flow.held:
            for record in woken:
                self._flow.release((record, *self._lanes.behind(record)))

    # -- on the way back --------------------------------------------------------------

    def _from_ward(self, ward: Quarantine, now: float) -> list[Record]:
        ward.refresh(now)
        ended = ward.turn(now)
        self._in_ward.difference_update(ended)
        return ended

    def _end(self, ended: list[Record]) -> list[Record]:
        done = [record for record in ended if record.partition.open]
        if len(done) < len(ended):
            done += self._ended_late([record for record in ended if not record.partition.open])
        odd = [record for record in done if not isinstance(record.outcome, Results)]
        if odd or self._doomed:
            done = [record for record in done if isinstance(record.outcome, Results)]
            self._triage.succeeded(done)
            done += self._sort_out(odd)
        else:
            self._triage.succeeded(done)
        return self._finish(done)

    def outlived(self, records: list[Record]) -> None:
        """Ended, and not settled when their partitions were closed."""
        self._taken_up += self._ended_late(records)

    def _ended_late(self, records: list[Record]) -> list[Record]:
        """Of records of closed partitions, those that are of a present epoch now.

        The others are their new owner's to do again, or to publish.
        """
        ends = self._outliving.ended(records)
        self._lanes.put_back(ends.freed)
        if self._claimant is not None:
            unbegun = [record for record in ends.useless if record.outcome is NOT_ATTEMPTED]
            self._claimant.cancelled(unbegun)
            self._claimant.ended_after_revoke(
                [r for r in ends.useless if r.outcome is not NOT_ATTEMPTED]
            )
        return ends.taken_up

    def _put_back(self, records: list[Record]) -> None:
        """The pool did not begin them; of a closed partition nothing begins."""
        back = [record for record in records if record.partition.open]
        # A handler has ended with these, and hears of it before they go on.
        to_tell = [record for record in back if record.on_dead is not None]
        if to_tell:
            self._to_tell.extendleft(reversed(to_tell))
            back = [record for record in back if record.on_dead is None]
        (self._claimant or self._lanes).put_back(back)
        if len(back) < len(records):
            late = [record for record in records if not record.partition.open]
            for record in late:
                record.outcome = NOT_ATTEMPTED
            self._ended_late(late)

    def _sort_out(self, odd: list[Record]) -> list[Record]:
        """Of those that did not simply end well, the ones that ended."""
        doomed, self._doomed = self._doomed, []
        finished = []
        for record in [*odd, *doomed]:
            match record.outcome:
                case Failed(error) if type(error) is TooLarge and error.outputs:
                    record.outcome = Results(error.outputs)
                    self._triage.succeeded([record])
                    self.large += self._finish([record])
                case Failed(error):
                    if self._judged(record, error):
                        finished.append(record)
                case NotAttempted():
                    record.outcome = None
                    self._lanes.put_back((record,))
                case _:
                    finished.append(record)
        return finished

    def _judged(self, record: Record, error: BaseException) -> bool:
        """Whether the record ends with this failure, or with what that made kworker raise."""
        self.failed += 1
        try:
            return self._judge(record, error)
        except BaseException as raised:  # noqa: BLE001 - an exception of the user's may raise anything
            failure = Failure.unreadable(raised, "how its handler failed cannot be read")
            return self._judge(record, Described(failure.with_stack(raised)))

    def _judge(self, record: Record, error: BaseException) -> bool:
        """Whether the record ends with this failure."""
        now = self._clock()
        record.outcome = None
        if self._refusals.any and (by := self._refusals.by(record.source)):
            error = Described(_rejected(by))
        match self._triage.judge(record, error, now):
            case float(due):
                if isinstance(error, Unpublishable) and error.outputs:
                    record.outcome = Results(error.outputs)
                self._wait(record, due)
                return False
            case DeadLettered() as letter if self._tells(record, error):
                record.on_dead = OnDeadCall(error, letter)
                self._to_tell.append(record)
                return False
            case letter:
                record.outcome = letter
                return True

    def _tells(self, record: Record, error: BaseException) -> bool:
        """Whether its handler hears of it: not of one that might end this process, too.

        Of a suspect nobody knows whether it was its run or its `dead` that ended one.
        """
        if not self._tells_dead(record.source.topic):
            return False
        dangerous = Failure.of(error).kind in ("crashed", "timeout")
        return not (dangerous or (self._ward is not None and self._ward.is_suspect(record)))

    def _wait(self, record: Record, due: float) -> None:
        if due == inf:
            self._lanes.park(record, inf)
        else:
            self._flow.hold(self._lanes.hold(record, due))

    def _doom(self, record: Record, failure: Failure) -> None:
        record.outcome = Failed(Described(failure))
        self._doomed.append(record)

    def _finish(self, records: list[Record]) -> list[Record]:
        self._lanes.finish(records)
        self._flow.leave(records)
        return records

    # -- all that they led to is durable ----------------------------------------------

    def settled(self, records: list[Record]) -> None:
        """Those done: their events are, too."""
        if self._claimant is not None:
            self._claimant.settled(records)
        if self._suspecting and self._ward is not None:
            self._ward.settled(records)
        if self._refusals.any:
            self._refusals.settled(records)

    def settled_letters(self, retried: list[Record], dead: list[Record]) -> None:
        """Those on their way to another run, and the dead: their events may run again."""
        records = [*retried, *dead]
        if self._claimant is not None:
            self._claimant.released(records)
        if self._suspecting and self._ward is not None:
            self._ward.settled(records)
        if self._refusals.any:
            self._refusals.settled(dead)

    # -- giving up --------------------------------------------------------------------

    def rebalanced(self) -> None:
        """A new assignment may bring what another worker died of."""
        if self._ward is not None:
            self._ward.refresh(self._clock(), force=True)

    def returned(self, owned: Collection[Partition]) -> None:
        """All partitions of a new assignment, before anything of it comes."""
        for partition in owned:
            self._lanes.open(partition)
        self._outliving.returned(owned)

    def tidy(self) -> None:
        """To be called now and then."""
        if self._outliving:
            self._outliving.tidy()

    @property
    def shedding(self) -> Collection[Partition]:
        """The partitions of which nothing begins."""
        return self._shedding

    def shed(self, partitions: Collection[Partition]) -> None:
        """From now on nothing of these partitions begins; of all others, what may.

        Forgets what has not begun, unless something beyond it has that no map would tell: that
        must still run, or what is beyond it would be done again. What has begun goes on, which
        includes the halves of a batch that raised, and telling a handler of its dead.
        """
        self._shedding = partitions
        if not partitions:
            return
        going = set(partitions)
        # The pool first: what it has not begun goes on its way back from there.
        back = self._pool.withdraw(going)
        self._out.difference_update(back)
        self._put_back(back)
        back = self._withdrawn_suspects(going)
        if self._claimant is not None:
            for partition in going:
                back += self._claimant.withdraw(partition)
        back += self._outliving.withdraw(going)
        self._lanes.put_back(back)
        self._drop_unbegun()

    def _shed_late(self) -> None:
        """What failed, was not attempted or came back since then does not begin either."""
        if self._in_ward:
            mapped = {p for p in self._shedding if p.origin is not None}
            self._lanes.put_back(self._withdrawn_suspects(mapped))
        if self._lanes.ready or self._lanes.parked:
            self._drop_unbegun()

    def _withdrawn_suspects(self, going: Collection[Partition]) -> list[Record]:
        """Suspects of these partitions that do not run; no more in the ward."""
        if self._ward is None:
            return []
        back = self._ward.withdraw(lambda record: record.partition in going)
        self._in_ward.difference_update(back)
        return back

    def _drop_unbegun(self) -> None:
        for partition in self._shedding:
            begun = -1
            dropped, unheld = self._lanes.drop(partition, begun)
            if self._claimant is not None:
                self._claimant.cancelled(dropped)
            self._flow.drop(dropped)
            self._flow.release(unheld)

    def close(self, partition: Partition) -> None:
        """It is given up: its records in the pool no longer count, unless it returns."""
        self._outliving.leave(partition, [r for r in self._out if r.partition is partition])
        dropped, unheld = self._lanes.close(partition)
        self._flow.release(unheld)
        # Claimed, and never to run here: the next owner must not wait for them.
        dropped += [record for record in self._doomed if record.partition is partition]
        self._doomed = [record for record in self._doomed if record.partition is not partition]
        if self._ward is not None:
            self._ward.close(partition)
            running = {record for record in self._in_ward if record.partition is partition}
            self._in_ward -= running
            dropped += running
        if self._claimant is not None:
            self._claimant.withdraw(partition)
            self._claimant.cancelled(dropped)
        self._triage.forget(partition)
        self._flow.forget(partition)

    def abandon_suspects(self) -> None:
        """What the cell still runs is delivered again; the cell ends."""
        if self._ward is not None:
            abandoned = self._ward.abandon()
            self._in_ward.difference_update(abandoned)
            self._flow.leave(abandoned)
            if self._claimant is not None:
                self._claimant.released(abandoned)

    def end(self, deadline: float) -> None:
        """Nothing runs any more: the last marks, until a deadline."""
        if self._claimant is not None:
            self._claimant.drain(deadline)


def _rejected(by: str) -> Failure:
    return Failure("operator", message=f"rejected by {by}")
