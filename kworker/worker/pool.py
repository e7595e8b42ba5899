"""The bounded pool of handler threads: runs of records in, records with outcomes out."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from kworker.core.outcome import Failed, Outcome
from kworker.core.record import Record
from kworker.supervisor.scoreboard import Hand

Work = Callable[[Record, float], Outcome]
"""Runs the handler for a record that began at a monotonic time; may raise anything."""

RUN_S = 0.001  # so much work is handed over at once
RUN_MOST = 256
STUCK_S = 0.005  # a run that has not moved for so long gives its rest back
_FORGET = 0.3


class ThreadPool:
    """`threads` handler threads.

    A run is a deque of records of different lanes. Its thread takes them from the
    left; the poll thread may take what has not started from the right, when one
    slow record would hold up the others: both are atomic, so nobody needs a lock.
    """

    def __init__(self, work: Work, hands: Sequence[Hand]) -> None:
        self._work = work
        self._hands = hands
        self._runs: SimpleQueue[deque[Record] | None] = SimpleQueue()
        self.ended: SimpleQueue[Record] = SimpleQueue()
        self._now: list[deque[Record]] = [deque() for _ in hands]  # each thread's run
        self._seen: list[tuple[deque[Record], int]] = [(run, 0) for run in self._now]
        self._seen_at = 0.0
        self._cost_s = RUN_S  # of one record, lately: the first runs are of one
        self._sample_s = RUN_S
        self._threads = [
            threading.Thread(target=self._serve, args=(i,), name=f"handler-{i}", daemon=True)
            for i in range(len(hands))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wanted(self) -> int:
        """How many records the next run should have; 0 when enough runs are waiting."""
        if self._runs.qsize() >= len(self._threads):
            return 0
        self._cost_s += _FORGET * (self._sample_s - self._cost_s)
        return max(1, min(RUN_MOST, int(RUN_S / self._cost_s)))

    def hand(self, run: deque[Record]) -> None:
        """Called by the poll thread."""
        self._runs.put(run)

    def reclaim(self, now: float) -> list[Record]:
        """What has not started of runs that do not move. Called by the poll thread."""
        if now - self._seen_at < STUCK_S:
            return []
        stuck = [run for run, (seen, left) in self._look(now) if seen is run and left == len(run)]
        records = [record for run in stuck for record in _emptied(run)]
        if records:
            self._cost_s = self._sample_s = STUCK_S
        return records

    def _look(self, now: float) -> list[tuple[deque[Record], tuple[deque[Record], int]]]:
        before = self._seen
        runs = list(self._now)
        self._seen = [(run, len(run)) for run in runs]
        self._seen_at = now
        return [(run, seen) for run, seen in zip(runs, before, strict=True) if run]

    def stop(self) -> None:
        """Every thread ends after its present run, which begins nothing more; does not wait."""
        for run in [*self._now, *self._waiting_runs()]:
            _emptied(run)
        for _ in self._threads:
            self._runs.put(None)

    def _waiting_runs(self) -> list[deque[Record]]:
        runs: list[deque[Record]] = []
        while True:
            try:
                runs.append(self._runs.get_nowait() or deque())
            except Empty:
                return runs

    def _serve(self, index: int) -> None:
        hand = self._hands[index]
        while (run := self._runs.get()) is not None:
            self._now[index] = run
            began = time.monotonic()
            done = self._run(run, hand)
            hand.clear()
            self._sample_s = (time.monotonic() - began) / max(done, 1) + 1e-9

    def _run(self, run: deque[Record], hand: Hand) -> int:
        work, ended, done = self._work, self.ended, 0
        while True:
            try:
                record = run.popleft()
            except IndexError:
                return done
            now_ns = time.monotonic_ns()
            hand.take(record.partition.known, record.offset, now_ns)
            try:
                # What waited here while its partition was taken away is another's to do.
                record.outcome = work(record, now_ns / 1e9) if record.partition.open else None
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
                record.outcome = Failed(error)
            ended.put(record)
            done += 1


def _emptied(run: deque[Record]) -> list[Record]:
    records: list[Record] = []
    while run:
        try:
            records.append(run.pop())
        except IndexError:
            break
    records.reverse()
    return records


def drain(ended: SimpleQueue[Record], wait_s: float) -> list[Record]:
    """All records that have ended; waits up to `wait_s` for the first."""
    records: list[Record] = []
    try:
        if wait_s > 0:
            records.append(ended.get(timeout=wait_s))
        for _ in range(ended.qsize()):
            records.append(ended.get_nowait())
    except Empty:
        pass
    return records
