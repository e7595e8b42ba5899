"""One event loop for `async def` handlers, behind the same face as the pool of threads."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn

import structlog

from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.outcome import Failed
from kworker.core.record import Partition, Record
from kworker.instance.scoreboard import Hand
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.invocation import AsyncInvoke
from kworker.worker.handlers.thread_pool import Take, emptied, place_of

_LOG = structlog.get_logger()

SLACK_S = 0.001
_TELL_EVERY_S = 10.0


class HandlerLoop:
    """The thread of an event loop, on which coroutines of handlers run.

    Nothing is begun after `stop`; what has begun is left where it is.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tell_at = 0.0
        self._stopped = False  # written by `stop`, before the loop hears of it
        self._thread = threading.Thread(target=self._serve, name="handlers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(self, begin: Callable[[Any], None], what: Any) -> None:
        """`begin(what)`, on the loop. Called by any thread."""
        self._loop.call_soon_threadsafe(self._call, begin, what)

    def spawn(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the coroutine that `begin` makes, which catches whatever it meets.

        Called on the loop.
        """
        task = self._loop.create_task(begin())
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(partial(self._over, begin))

    def _over(
        self, begin: Callable[[], Coroutine[Any, Any, None]], task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        # A handler that cancels every task of the loop meets those, too, that have not begun.
        if task.cancelled() and not self._stopped:
            self.spawn(begin)

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        """In a forked child, on the loop: `end` is called before any other coroutine goes on."""
        # What this very round of the loop still has to do would come before a `call_soon`.
        getattr(self._loop, "_ready", deque[Any]()).clear()
        self._loop.call_soon(end)

    def stop(self) -> None:
        """The loop ends; does not wait. Called by any thread."""
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _call(self, begin: Callable[[Any], None], what: Any) -> None:
        # A coroutine made in the loop's last round would never be awaited.
        if not self._stopped:
            begin(what)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopped:
            try:
                self._loop.run_forever()
            except BaseException as raised:  # noqa: BLE001 - a task of a handler's may call sys.exit
                how = f"raised {type(raised).__name__}"
            else:
                how = "stopped the loop"
            if not self._stopped:
                self._tell(how)

    def _tell(self, how: str) -> None:
        """The handler that waits for such a task fails of it; one that nobody waits for is over."""
        if (now := time.monotonic()) >= self._tell_at:
            self._tell_at = now + _TELL_EVERY_S
            _LOG.warning(f"a task or callback of a handler {how}; the loop of all handlers goes on")


class AsyncPool:
    """Up to as many handlers in flight as there are hands, on one loop in one thread.

    A record begins when its coroutine takes it from its run, from the left. What a busy loop
    has not come to, the poll thread may take from the right.
    """

    def __init__(self, work: AsyncInvoke, hands: Sequence[Hand]) -> None:
        self._work = work
        self._hands = hands
        self._free = list(range(len(hands)))  # touched by the loop's thread only
        self.completed = CompletionQueue()
        self._handed = 0  # by the poll thread
        self._unbegun: list[deque[Record]] = []  # runs of which some had not, when it last looked
        self._finished = 0  # by the loop's thread
        self._loop = HandlerLoop()

    def start(self) -> None:
        self._loop.start()

    def feed(self, take: Take) -> int:
        """Takes as many records as handlers may start now; how many that was."""
        self._unbegun = [run for run in self._unbegun if run]
        free = self._free_now()
        if free > 0 and (run := take(free)):
            fed = len(run)  # before the loop has it
            self.hand(run)
            return fed
        return 0

    @property
    def has_work(self) -> bool:
        """A record was handed over and has not come back."""
        return self._handed > self._finished

    def slack_s(self) -> float:
        """For how long the next outcomes can wait: a moment, as long as no handler could start."""
        return 0.0 if self._free_now() else SLACK_S

    def hand(self, run: deque[Record]) -> None:
        """Called by the poll thread."""
        self._handed += len(run)
        self._unbegun.append(run)
        self._loop.call(self._begin, run)

    def reclaim(self, now: float) -> list[Record]:  # noqa: ARG002 - the face of a pool
        """Nothing: whatever was handed over starts as soon as the loop turns."""
        return []

    def withdraw(self, going: Collection[Partition]) -> list[Record]:  # noqa: ARG002 - all may go
        """What was handed over and has not started: all of `going`, and of others, too."""
        unbegun, self._unbegun = self._unbegun, []
        back = [record for run in unbegun for record in emptied(run)]
        self._handed -= len(back)
        return back

    def flush(self) -> None:
        """Nothing: whatever was handed over waits for a handler only."""

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        """In a forked child: nothing begins or goes on, and `end` is called after its handler."""
        self.withdraw(())
        self._loop.after_fork_in_child(end)

    def stop(self) -> None:
        """Handlers still running are left where they are; nothing more is begun."""
        self._loop.stop()

    def _free_now(self) -> int:
        return len(self._hands) - (self._handed - self._finished)

    def _begin(self, run: deque[Record]) -> None:
        for _ in range(len(run)):
            self._loop.spawn(partial(self._one, run))

    async def _one(self, run: deque[Record]) -> None:
        try:
            record = run.popleft()
        except IndexError:  # withdrawn
            return
        index = self._free.pop()
        now_ns = time.monotonic_ns()
        try:
            self._hands[index].take(place_of(record), now_ns)
            # What waited here while its partition was taken away is another's to do.
            going = record.partition.open
            record.outcome = await self._work(record, now_ns) if going else NOT_ATTEMPTED
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            record.outcome = Failed(error)
        self._hands[index].clear()
        self._free.append(index)
        self._finished += 1
        self.completed.add(record)
        self.completed.wake()
