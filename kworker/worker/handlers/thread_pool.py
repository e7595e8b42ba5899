"""The pool of handler threads: takes runs of records, returns records with outcomes.

Over 300 lines, since both forms of a run, of records and of chunks, are run and taken back here.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue
from typing import NoReturn, get_args

from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.chunk import ChunkRow, Row
from kworker.core.outcome import NO_RESULTS, Failed, Succeeded
from kworker.core.record import Partition, Record
from kworker.instance.hand import Hand
from kworker.log.running import ThreadCall, this_thread
from kworker.worker.handlers.chunk_run import NOTE_EVERY_NS, SLOW_NS, RunChunk
from kworker.worker.handlers.completions import CompletionQueue, HandlerTimes
from kworker.worker.handlers.cpu_affinity import CpuAffinity, CpuAffinityPolicy
from kworker.worker.handlers.invocation import Invoke
from kworker.worker.handlers.pool import Take
from kworker.worker.handlers.run_cost import RUNS_EACH, RunCost
from kworker.worker.handlers.run_watch import RunWatch

SLACK_LEAST_S, SLACK_MOST_S = 0.001, 0.005
_SLACK = 0.4  # of the time of a record
_ENDED_WELL = get_args(Succeeded)  # `isinstance` with the union itself takes longer
_Run = deque[Record] | ChunkRow
_SAMPLED = 8  # of so many runs of one record one is measured: thread_time() is a system call


class ThreadPool:
    """Runs handlers in threads, one for each of `hands`.

    A `Hand` is an entry of the scoreboard, in which a thread notes the record that it runs. Records
    are handed over in runs. A run is a deque of records, in which the records of one lane (queue of
    one key) are adjacent. A thread takes the records of its run from the left. If a record does
    not end well, the thread hands back the later records of that lane. The poll thread may take
    unstarted records back from the right, when a slow record would hold up the others, or when no
    more records shall begin. Taking from either side is atomic without a lock. If handlers are
    cheap and mostly compute, few runs are handed over at once, since more threads would only wait
    for the interpreter's lock. All other handlers get every thread.
    """

    def __init__(
        self, invoke: Invoke, hands: Sequence[Hand], run_chunk: RunChunk | None = None
    ) -> None:
        """Without `run_chunk`, the pool does not take chunks."""
        self._invoke = invoke
        self._run_chunk = run_chunk
        self.runs_chunks = run_chunk is not None
        self._hands = hands
        self._runs: SimpleQueue[_Run | None] = SimpleQueue()
        self.completed = CompletionQueue()
        self._current: list[_Run | None] = [None] * len(hands)  # run of each thread
        self._finished = [0] * len(hands)  # number of runs, by thread
        self._handed = 0  # number of runs, by the poll thread
        self._unbegun: list[_Run] = []  # runs that had not begun all records, last turn
        self._watch = RunWatch[_Run](len(hands))
        self._stuck = 0  # number of runs without progress
        self._cost = RunCost(len(hands))
        self._placement = CpuAffinity(CpuAffinityPolicy(), ended=self.completed.number_of_runs)
        self._end_copy: Callable[[], NoReturn] | None = None  # in a child that a handler forked
        self._threads = [
            threading.Thread(target=self._serve, args=(i,), name=f"handler-{i}", daemon=True)
            for i in range(len(hands))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def feed(self, take: Take) -> int:
        """Calls `take` for records until the threads have enough of them.

        Returns the number of records taken.
        """
        self._cost.learn()
        self._unbegun = [run for run in self._unbegun if run]
        room = max(0, self._cost.useful_runs - self._moving())
        if not self.runs_in_order:
            records = take(room)  # a call for each would cost more than to hand it over
            assert isinstance(records, deque)  # chunks come in order
            for record in records:
                self.hand(deque((record,)))
            return len(records)
        fed = 0
        for _ in range(room):
            if not (run := take(self._cost.run_size)):
                break
            fed += len(run)  # counted before a thread has the run
            self.hand(run)
        return fed

    @property
    def runs_in_order(self) -> bool:
        """True if one thread gets all records of one `Take` call; False if each is queued alone."""
        return self._cost.run_size > 1

    @property
    def one_is_enough(self) -> bool:
        """True if one thread does as much as all could, since handlers are cheap and compute.

        False while a record takes long.
        """
        return self.runs_in_order and self._cost.useful_runs == RUNS_EACH and not self._stuck

    @property
    def has_work(self) -> bool:
        """True if a run (a deque of records) was handed over and has not ended."""
        return self._handed > sum(self._finished)

    def slack_s(self) -> float:
        """Returns the seconds that the poll loop may sleep before it collects this pool's outcomes.

        Returns 0 if threads need work, so that the poll loop gives them records soon. Also returns
        0 if only one thread is of use. It has two runs at most, and would be idle if both took less
        time than the slack. Its runs are long, so it costs little to wake the poll loop after each.
        """
        useful = self._cost.useful_runs
        if useful == RUNS_EACH or self._moving() < 0.75 * useful:
            return 0.0
        return min(SLACK_MOST_S, max(SLACK_LEAST_S, _SLACK * self._cost.record_s))

    def hand(self, run: _Run) -> None:
        """Queues a run for the next free thread. Called by the poll thread."""
        if isinstance(run, ChunkRow):
            run.lock = threading.Lock()
        self._handed += 1
        self._unbegun.append(run)
        self._runs.put(run)

    def reclaim(self, now: float) -> list[Record]:
        """Takes back records that wait in a thread behind a slow record.

        Called by the poll thread.
        """
        stuck = self._watch.look(self._current, now, self._cost.record_s)
        if stuck is None:
            return []
        self._placement.decide(self._cost.computes, now)
        self._stuck = len(stuck)
        return [record for run in stuck for record in emptied(run)]

    def withdraw(self, going: Collection[Partition]) -> list[Record]:  # noqa: ARG002 - all may go
        """Takes back all records that have not started, whatever their partition.

        Such a record waits in the queue, or in a thread behind another record. Called by the poll
        thread.
        """
        unbegun, self._unbegun = self._unbegun, []
        return [record for run in unbegun for record in emptied(run)]

    def flush(self) -> None:
        """Does nothing, because this pool holds no records back to fill a batch."""

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        """Makes a forked child run no other record, and call `end` once its handler returns."""
        self._end_copy = end
        for run in (*self._unbegun, *self._current):
            if isinstance(run, ChunkRow):
                run.abandon()
            elif run is not None:
                run.clear()

    def stop(self) -> None:
        """Ends every thread after its present record. Does not block."""
        self.withdraw(())
        for _ in self._threads:
            self._runs.put(None)
        self._placement.end()

    def _moving(self) -> int:
        return self._handed - sum(self._finished) - self._stuck

    def _serve(self, index: int) -> None:
        hand, current, finished = self._hands[index], self._current, self._finished
        hand.set_thread(threading.get_native_id())
        times, thread = self.completed.new_times(), this_thread()
        while (run := self._next_run(index, thread)) is not None:
            current[index] = run
            if isinstance(run, ChunkRow) or len(run) > 1 or finished[index] % _SAMPLED == 0:
                self._run_sampled(run, hand, times, thread)
            else:
                self._run(run, hand, times, thread)
            if self._end_copy is not None:
                self._end_copy()
            self.completed.wake()
            finished[index] += 1
        self._rest(index, thread)

    def _next_run(self, index: int, thread: ThreadCall) -> _Run | None:
        """Waits for the next run; returns None at the end of the pool."""
        runs = self._runs
        if not runs.empty():  # else `Empty` would be raised for nothing
            try:
                return runs.get_nowait()
            except Empty:
                pass  # another thread was faster
        self._rest(index, thread)
        return runs.get()

    def _rest(self, index: int, thread: ThreadCall) -> None:
        """Notes that this thread runs no record. Not called if the next run follows at once."""
        self._hands[index].clear()
        self._current[index] = thread.running = None

    def _run_sampled(self, run: _Run, hand: Hand, times: HandlerTimes, thread: ThreadCall) -> None:
        computed, began = time.thread_time(), time.monotonic()
        if isinstance(run, ChunkRow):
            done = self._run_chunks(run, hand, times, thread)
        else:
            done = self._run(run, hand, times, thread)
        if done:  # else it was withdrawn
            wall_s = time.monotonic() - began + 1e-9
            computed = time.thread_time() - computed
            self._cost.add(wall_s / done, computed / wall_s)

    def _leave_lane(self, failed: Record, run: deque[Record]) -> None:
        """Hands back the records of the lane that follow `failed` in `run`; does not run them.

        Of a `Row`, hands back all that follow of its partition.
        """
        lane, lanes = failed.lane, failed.source_lanes
        of_all = type(run) is Row
        while lane is not None:
            try:
                following = run[0]
                if following.source_lanes is not lanes or not (of_all or following.lane == lane):
                    return
                run.popleft()
            except IndexError:
                return  # the poll thread has taken the rest
            following.outcome = NOT_ATTEMPTED
            self.completed.add(following)

    def _run_chunks(
        self, row: ChunkRow, hand: Hand, times: HandlerTimes, thread: ThreadCall
    ) -> int:
        """Runs the chunks of a row, and its records once they are broken up; returns how many."""
        assert self._run_chunk is not None
        done = 0
        for chunk in row.chunks:
            ran, last = self._run_chunk(chunk, hand, times, thread)
            done += ran
            if last is not None:
                if type(last.outcome) not in _ENDED_WELL:
                    self._leave_lane(last, row.waiting)  # while the record is still this thread's
                self.completed.add(last)
            if row.broken:
                break
        return done + self._run(row.waiting, hand, times, thread)

    def _run(self, run: deque[Record], hand: Hand, times: HandlerTimes, thread: ThreadCall) -> int:
        """Runs records from the left of `run` until it is empty; returns their number."""
        invoke, add = self._invoke, self.completed.add
        following, clock_ns = run.popleft, time.monotonic_ns
        words, since_at, place_at = hand.words, hand.since_at, hand.place_at
        note_at = done = counted = 0  # of `done`, `times` has the `counted`, which were slow
        now_ns = others_ns = clock_ns()  # the others would have begun then, had only they run
        try:
            record = following()
        except IndexError:
            return 0  # withdrawn
        # The wait of the first counts for all: to measure each costs more than a cheap handler.
        waited_ns = now_ns - record.taken_ns if record.is_first_run else None
        while True:
            partition = record.partition
            try:
                # Inside the `try`, too: an exception here must not end the thread.
                if now_ns > note_at:
                    words[since_at] = now_ns
                    note_at = now_ns + NOTE_EVERY_NS
                if record.envelope is None:
                    words[place_at] = partition.scoreboard_word + record.offset
                else:
                    words[place_at] = record.scoreboard_word
                # Its partition may have been revoked meanwhile: another worker runs it then.
                outcome = invoke(record, now_ns, thread) if partition.open else NOT_ATTEMPTED
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is the outcome
                outcome = Failed(error)
            record.outcome = outcome
            if outcome is not NO_RESULTS and type(outcome) not in _ENDED_WELL:
                self._leave_lane(record, run)  # while the record is still this thread's
            add(record)
            done += 1
            before_ns, now_ns = now_ns, clock_ns()
            if now_ns > note_at and now_ns - before_ns > SLOW_NS:
                times.runs.add(1, now_ns - before_ns)
                counted += 1
                others_ns += now_ns - before_ns
            try:
                record = following()
            except IndexError:
                break
        del record, outcome  # a handler may keep an exception, and so this frame
        if done > counted:
            times.runs.add(done - counted, now_ns - others_ns)
        if waited_ns is not None:
            times.waits.add(done, done * waited_ns)
        return done


def place_of(record: Record) -> int:
    """Returns the number by which the scoreboard names a record's position in its source topic."""
    if record.envelope is None:
        return record.partition.scoreboard_word + record.offset
    return record.scoreboard_word


def emptied(run: _Run) -> list[Record]:
    """Removes and returns the records in `run`, in order. A thread may take some meanwhile."""
    if isinstance(run, ChunkRow):
        run.break_up()
        run = run.waiting
    records: list[Record] = []
    while run:
        try:
            records.append(run.pop())
        except IndexError:
            break
    records.reverse()
    return records
