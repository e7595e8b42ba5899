"""One event loop for `async def` handlers, with the interface of the thread pool."""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, NoReturn

from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.outcome import Failed
from kworker.core.record import Partition, Record
from kworker.instance.hand import Hand
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.handler_loop import HandlerLoop
from kworker.worker.handlers.invocation import AsyncInvoke
from kworker.worker.handlers.loop_watch import LoopWatch
from kworker.worker.handlers.pool import Take
from kworker.worker.handlers.thread_pool import emptied, place_of

SLACK_S = 0.001


class AsyncPool:
    """Runs `async def` handlers on one event loop, at most one for each of `hands`.

    A `Hand` is an entry of the scoreboard, in which a handler's record is noted while it runs.
    Records are handed over in runs. A run is a deque of records, and each coroutine takes its
    record from the left. While the loop is busy, the poll thread may take unstarted records back
    from the right.
    """

    runs_in_order: ClassVar[bool] = False

    def __init__(self, invoke: AsyncInvoke, hands: Sequence[Hand], loop: HandlerLoop) -> None:
        """`loop` belongs to `Handlers`: it is started before this pool, and ended after it."""
        self._invoke = invoke
        self._hands = hands
        self._free = list(range(len(hands)))  # touched by the loop's thread only
        self.completed = CompletionQueue()
        self._handed = 0  # by the poll thread
        self._unbegun: list[deque[Record]] = []  # runs that had not begun all records, last turn
        self._finished = 0  # by the loop's thread
        self._times = self.completed.new_times()
        self._loop = loop
        self._watch = LoopWatch(loop)

    def start(self) -> None:
        """Does nothing, because the loop runs since the handlers were opened."""

    def feed(self, take: Take) -> int:
        """Calls `take` for as many records as may start now; returns the number taken."""
        self._unbegun = [run for run in self._unbegun if run]
        free = self._free_now()
        if free > 0 and (run := take(free)):
            fed = len(run)  # counted before the loop has the run
            self.hand(run)
            return fed
        return 0

    @property
    def has_work(self) -> bool:
        """True if a record that was handed to the pool has not ended."""
        return self._handed > self._finished

    def slack_s(self) -> float:
        """Returns the seconds that the poll loop may sleep before it collects this pool's outcomes.

        Returns 0 if a handler is free, so that the poll loop gives this handler a record soon.
        """
        return 0.0 if self._free_now() else SLACK_S

    def hand(self, run: deque[Record]) -> None:
        """Has the loop start a coroutine for each record in `run`. Called by the poll thread."""
        self._handed += len(run)
        self._unbegun.append(run)
        self._loop.call(self._loop.spawn, self._one, run)

    def reclaim(self, now: float) -> list[Record]:  # noqa: ARG002 - a pool's interface
        """Returns an empty list, but logs which code blocks the event loop, if any does.

        The loop starts all records at once, so none waits behind another. Called at each turn of
        the poll loop.
        """
        self._watch.turn(has_work=self.has_work)
        return []

    def withdraw(self, going: Collection[Partition]) -> list[Record]:  # noqa: ARG002 - all may go
        """Takes back all records that have not started, whatever their partition."""
        unbegun, self._unbegun = self._unbegun, []
        back = [record for run in unbegun for record in emptied(run)]
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

    def _free_now(self) -> int:
        return len(self._hands) - (self._handed - self._finished)

    async def _one(self, run: deque[Record]) -> None:
        try:
            record = run.popleft()
        except IndexError:  # withdrawn
            return
        task = self._loop.hold()
        index = self._free.pop()
        now_ns = time.monotonic_ns()
        owned = False
        try:
            self._hands[index].take(place_of(record), now_ns)
            # Its partition may have been revoked meanwhile: another worker runs it then.
            owned = record.partition.open
            record.outcome = await self._invoke(record, now_ns) if owned else NOT_ATTEMPTED
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is the outcome
            record.outcome = Failed(error)
        if owned:
            self._times.runs.add(1, time.monotonic_ns() - now_ns)
            if record.is_first_run:
                self._times.waits.add(1, now_ns - record.taken_ns)
        self._hands[index].clear()
        self._free.append(index)
        self._loop.release(task)
        self._finished += 1
        self.completed.add(record)
        self.completed.wake()
