"""One event loop for `async def` handlers, with the interface of the thread pool."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import ClassVar, NoReturn

from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.outcome import NO_RESULTS, Failed, Outcome
from kworker.core.record import Partition, Record
from kworker.instance.hand import Hand
from kworker.log.running import TASK
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.handler_loop import HandlerLoop
from kworker.worker.handlers.invocation import AsyncSteps
from kworker.worker.handlers.loop_watch import LoopWatch
from kworker.worker.handlers.pool import Take
from kworker.worker.handlers.task_traces import TaskTraces
from kworker.worker.handlers.thread_pool import emptied, place_of

SLACK_LEAST_S, SLACK_MOST_S = 0.001, 0.005
_SLACK = 0.5  # of the time in which all that waits will have begun
EACH = 2  # records: one that a handler runs, and one that waits for it


class AsyncPool:
    """Runs `async def` handlers on one event loop, at most one for each of `hands`.

    A `Hand` is an entry of the scoreboard, in which a handler's record is noted while it runs.
    A task takes the records that it runs from the left of a deque, in which some more wait than
    there are handlers free: so a task whose record has ended has the next one at once. The poll
    thread may take unstarted records back from the right.
    """

    runs_in_order: ClassVar[bool] = False
    one_is_enough: ClassVar[bool] = False
    runs_chunks: ClassVar[bool] = False

    def __init__(self, steps: AsyncSteps, hands: Sequence[Hand], loop: HandlerLoop) -> None:
        """`loop` belongs to `Handlers`: it is started before this pool, and ended after it."""
        self._steps = steps
        self._hands = hands
        self._free = list(range(len(hands)))  # touched by the loop's thread only
        self._most = EACH * len(hands)
        self._waiting: deque[Record] = deque()  # for a handler to begin them
        self._resting: list[asyncio.Future[None]] = []  # those for which tasks wait
        self._spawning = False  # tasks that have not begun: they have taken no hand yet
        self._begun_last = -1  # the index of the hand with which the last record began
        self.completed = CompletionQueue()
        self._handed = 0  # by the poll thread
        self._pace = Pace()
        self._times = self.completed.new_times()
        self._add_run, self._add_wait = self._times.runs.add_later, self._times.waits.add_later
        self._loop = loop
        self._watch = LoopWatch(loop)

    def start(self) -> None:
        """Does nothing, because the loop runs since the handlers were opened."""

    def feed(self, take: Take) -> int:
        """Calls `take` for as many records as the pool has room for; returns the number taken."""
        room = self._most - self._in_hand()
        if room > 0 and (run := take(room)):
            assert isinstance(run, deque)  # not chunks
            fed = len(run)  # counted before the loop has the run
            self.hand(run)
            return fed
        return 0

    @property
    def has_work(self) -> bool:
        """True if a record that was handed to the pool has not ended."""
        return self._handed > self.completed.added

    def slack_s(self) -> float:
        """Returns the seconds that the poll loop may sleep before it collects this pool's outcomes.

        Returns 0 if a handler is free, or soon will be without a record that waits: then the poll
        loop must be quick.
        """
        if self._in_hand() < len(self._hands):
            return 0.0
        slack_s = _SLACK * len(self._waiting) * self._pace.seconds_each(self.completed.added)
        return 0.0 if slack_s < SLACK_LEAST_S else min(slack_s, SLACK_MOST_S)

    def hand(self, run: deque[Record]) -> None:
        """Has the loop run these records once handlers are free. Called by the poll thread."""
        self._handed += len(run)
        self._waiting.extend(run)
        self._loop.call(self._begin)

    def reclaim(self, now: float) -> list[Record]:  # noqa: ARG002 - a pool's interface
        """Returns an empty list, but logs which code blocks the event loop, and counts durations.

        No record waits behind a slow one, since each goes to the next task that is free. Called at
        each turn of the poll loop.
        """
        self._watch.turn(has_work=self.has_work)
        self._times.tally()  # lest they pile up where nobody reads them, as in a replay
        return []

    def withdraw(self, going: Collection[Partition]) -> list[Record]:  # noqa: ARG002 - all may go
        """Takes back all records that have not started, whatever their partition."""
        back = emptied(self._waiting)
        self._handed -= len(back)
        return back

    def flush(self) -> None:
        """Does nothing, because this pool holds no records back to fill a batch."""

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        """Makes a forked child call `end` once the handler that forked it ends or awaits.

        The child runs nothing else.
        """
        self.withdraw(())
        self._loop.after_fork_in_child(end)

    def stop(self) -> None:
        """Lets no further handler begin; those that run go on."""
        self.withdraw(())
        self._loop.stop()
        self._loop.call_anyway(self._end_rests)

    def _in_hand(self) -> int:
        return self._handed - self.completed.added

    def _begin(self) -> None:
        """Wakes resting tasks for waiting records, and starts new ones if these are too few."""
        wanted, resting = len(self._waiting), self._resting
        while wanted and resting:
            if not (rest := resting.pop()).done():  # else its task was cancelled
                rest.set_result(None)
                wanted -= 1
        if wanted and not self._spawning:  # else what has been spawned looks again
            self._spawning = self._loop.spawn(
                self._serve, self._waiting, min(wanted, len(self._free)), self._begin_again
            )

    def _begin_again(self) -> None:
        self._spawning = False
        self._begin()

    def _end_rests(self) -> None:
        for rest in self._resting:
            if not rest.done():
                rest.set_result(None)

    async def _serve(self, waiting: deque[Record]) -> None:
        """Runs records one after the other, as long as this task is as good as a new one.

        Rests while none waits. On Python 3.11, a new task costs as much as all else of a record.
        """
        if not self._free:
            return
        loop, task = self._loop, self._loop.hold()
        index = self._free.pop()
        traces = TaskTraces(task)
        traces.begin()
        hand, (begin, end) = self._hands[index], self._steps
        words, since_at, place_at = hand.words, hand.since_at, hand.place_at
        left, has_ended, clock_ns = traces.left, self._has_ended, time.monotonic_ns
        try:
            while not loop.stopped:
                # If no other has begun meanwhile, this one may have awaited nothing yet.
                if not waiting or self._begun_last == index:
                    await self._rest(hand)
                    continue
                try:
                    record = waiting.popleft()
                except IndexError:  # withdrawn
                    continue
                self._begun_last, now_ns = index, clock_ns()
                try:
                    words[since_at], words[place_at] = now_ns, place_of(record)
                    # Its partition may have been revoked meanwhile: another worker runs it then.
                    if not record.partition.open:
                        outcome: Outcome = NOT_ATTEMPTED
                    elif (returned := await begin(record, now_ns)) is None:
                        outcome = NO_RESULTS
                    else:
                        outcome = end(record, returned)
                        del returned
                except BaseException as error:  # noqa: BLE001 - whatever a handler raises is the outcome
                    outcome = Failed(error)
                failed = has_ended(record, outcome, now_ns, clock_ns())
                # A rest may be long; and the traceback of a failure refers to this frame.
                del record, outcome
                if failed or left():
                    break
        finally:
            hand.clear()
            self._free.append(index)
            loop.release(task)
            traces.call_as_at_first(self._begin)  # without what a handler has left

    def _rest(self, hand: Hand) -> Awaitable[None]:
        """Returns what a task shall await before its next record.

        It lets other tasks have their turn; if no record waits, it ends once one may.
        """
        self._begun_last = -1
        hand.clear()
        TASK.set(None)  # which keeps a record
        if self._waiting:
            return asyncio.sleep(0)
        self._resting.append(rest := asyncio.get_running_loop().create_future())
        return rest

    def _has_ended(self, record: Record, outcome: Outcome, began_ns: int, now_ns: int) -> bool:
        """Hands back a record; returns True if its run failed."""
        record.outcome = outcome
        if outcome is not NOT_ATTEMPTED:
            self._add_run(now_ns - began_ns)
            if record.is_first_run:
                self._add_wait(began_ns - record.taken_ns)
        completed = self.completed
        completed.add(record)
        if completed.needs_wake():
            completed.wake()
        return type(outcome) is Failed


class Pace:
    """The seconds from the end of one record to the next, of late. Used by the poll thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at, self._finished = clock(), 0
        self._each_s = 0.0

    def seconds_each(self, finished: int) -> float:
        """Returns the seconds for each record since the last call in which any had ended.

        `finished` is the number of records that have ended so far.
        """
        now = self._clock()
        if more := finished - self._finished:
            self._each_s = (now - self._at) / more
            self._at, self._finished = now, finished
        return self._each_s
