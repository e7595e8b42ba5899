"""From the lanes to the handlers and back: what may run runs, what failed is judged."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

from kworker.core.failure import Described, Failure
from kworker.core.flow import Flow
from kworker.core.lanes import Lanes
from kworker.core.outcome import Burying, Failed, Retrying, Skipped
from kworker.core.record import Partition, Record
from kworker.supervisor.refusals import Refusals
from kworker.worker.ended import Ended
from kworker.worker.pool import Take
from kworker.worker.triage import Triage


class Pool(Protocol):
    """Threads or a loop that run handlers."""

    ended: Ended

    def feed(self, take: Take) -> int: ...
    def slack_s(self) -> float: ...
    def reclaim(self, now: float) -> list[Record]: ...


class Dispatch:
    """What has been taken and has no outcome. Owned by the poll thread."""

    def __init__(
        self,
        pool: Pool,
        lanes: Lanes,
        flow: Flow,
        triage: Triage,
        refusals: Refusals,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._lanes = lanes
        self._flow = flow
        self._triage = triage
        self._refusals = refusals
        self._clock = clock
        self._out = 0  # records in the pool
        self._doomed: list[Record] = []  # failed before they could run
        self.failed = 0  # runs, ever

    @property
    def busy(self) -> bool:
        """Handlers are at work."""
        return self._out > 0

    @property
    def waiting(self) -> bool:
        """Something could run at once."""
        return self._lanes.ready or bool(self._doomed)

    @property
    def reasons(self) -> list[str]:
        return self._triage.reasons

    def next_due(self) -> float | None:
        """When the next parked record runs again."""
        return self._lanes.next_due()

    def slack_s(self) -> float:
        """For how long the next outcomes can wait."""
        return self._pool.slack_s()

    def doom(self, records: list[Record]) -> None:
        """Records that failed before they came to a lane: their outcome is Failed."""
        self._doomed += records

    def turn(self, wait_s: float) -> list[Record]:
        """Records that ended: their outcome is None, Skipped, or what is to be published."""
        ended = self._pool.ended.take(wait_s)
        finished = self._end(ended) if ended or self._doomed else []
        now = self._clock()
        self._wake(now)
        if back := self._pool.reclaim(now):
            self._out -= len(back)
            self._lanes.put_back(back)
        if self._lanes.ready:
            self._out += self._pool.feed(self._take)
        return finished

    def accept_dead(self) -> list[Record]:
        """What the breaker holds ends as dead letters: those records."""
        accepted = self._triage.accept(self._clock())
        self._lanes.pull(accepted)
        self._finish(accepted)
        return accepted

    def close(self, partition: Partition) -> None:
        """It is given up: its records in the pool no longer count."""
        self._lanes.close(partition)
        self._triage.forget(partition)
        self._flow.forget(partition)

    def _take(self, most: int) -> deque[Record]:
        run = self._lanes.take(most)
        while run and (self._triage.standing or self._refusals.any):
            passing = deque(record for record in run if self._passes(record))
            if passing:
                return passing
            run = self._lanes.take(most)
        return run

    def _passes(self, record: Record) -> bool:
        """Whether a record may run; if not, it waits, or is doomed."""
        if self._refusals.any and (by := self._refusals.by(record.source)):
            record.outcome = _rejected(by)
            self._doomed.append(record)
            return False
        if not self._triage.passes(record):
            self._lanes.park(record, inf)
            return False
        return True

    def _end(self, ended: list[Record]) -> list[Record]:
        self._out -= len(ended)
        # Another epoch's are its new owner's to do again.
        done = [record for record in ended if record.partition.open]
        telling = [record for record in done if record.outcome is not None]
        odd = [record for record in telling if type(record.outcome) is not list]
        if odd or self._doomed:
            done = [r for r in done if r.outcome is None or type(r.outcome) is list]
            self._triage.succeeded(done)
            done += self._sort_out(odd)
        else:
            self._triage.succeeded(done)
        self._finish(done)
        return done

    def _sort_out(self, odd: list[Record]) -> list[Record]:
        """Of those that did not simply end well, the ones that ended."""
        doomed, self._doomed = self._doomed, []
        finished = []
        for record in [*odd, *(record for record in doomed if record.partition.open)]:
            match record.outcome:
                case Failed():
                    if self._judge(record):
                        finished.append(record)
                case Skipped() | Retrying() | Burying():
                    finished.append(record)
        return finished

    def _judge(self, record: Record) -> bool:
        """Whether the record ends with this failure."""
        self.failed += 1
        if self._refusals.any and (by := self._refusals.by(record.source)):
            record.outcome = _rejected(by)
        now = self._clock()
        due = self._triage.judge(record, now)
        if due is None:
            return True
        if due == inf:
            self._lanes.park(record, inf)
        else:
            self._flow.hold(self._lanes.hold(record, due))
        return False

    def _finish(self, records: list[Record]) -> None:
        self._lanes.finish(records)
        self._flow.leave(records)

    def _wake(self, now: float) -> None:
        woken = self._lanes.wake(now) if self._lanes.parked else []
        if wakes := self._triage.wakes(now, self._out):
            woken += self._lanes.recall(wakes)
        if self._refusals.look(now):
            rejected = [r for r in self._lanes.all_parked() if self._refusals.by(r.source)]
            woken += self._lanes.recall(rejected)
        if woken and self._flow.held:
            for record in woken:
                self._flow.release((record, *self._lanes.behind(record)))


def _rejected(by: str) -> Failed:
    return Failed(Described(Failure("operator", message=f"rejected by {by}")))
