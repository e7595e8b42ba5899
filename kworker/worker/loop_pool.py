"""One event loop for `async def` handlers, behind the same face as the pool of threads."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue

from kworker.core.outcome import Failed, Outcome
from kworker.core.record import Record
from kworker.supervisor.scoreboard import Hand

AsyncWork = Callable[[Record, float], Awaitable[Outcome]]
RUN_MOST = 64
SLACK_S = 0.001


class LoopPool:
    """Up to as many handlers in flight as there are hands, on one loop in one thread."""

    def __init__(self, work: AsyncWork, hands: Sequence[Hand]) -> None:
        self._work = work
        self._hands = hands
        self._free = list(range(len(hands)))  # touched by the loop's thread only
        self.ended: SimpleQueue[Record] = SimpleQueue()
        self._handed = 0  # by the poll thread
        self._finished = 0  # by the loop's thread
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._serve, name="handlers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wanted(self) -> int:
        """How many more handlers may start now."""
        return min(RUN_MOST, len(self._hands) - (self._handed - self._finished))

    def slack_s(self) -> float:
        """For how long the next outcomes can wait: a moment, as long as no handler could start."""
        return SLACK_S if self.wanted() == 0 else 0.0

    def hand(self, run: deque[Record]) -> None:
        """Called by the poll thread."""
        self._handed += len(run)
        self._loop.call_soon_threadsafe(self._begin, run)

    def reclaim(self, now: float) -> list[Record]:  # noqa: ARG002 - the face of a pool
        """Nothing: whatever was handed over has started."""
        return []

    def stop(self) -> None:
        """The loop ends; handlers still running are left where they are."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _begin(self, run: deque[Record]) -> None:
        for record in run:
            task = self._loop.create_task(self._one(record))
            self._tasks.add(task)  # the loop itself keeps only weak references
            task.add_done_callback(self._tasks.discard)

    async def _one(self, record: Record) -> None:
        index = self._free.pop()
        now_ns = time.monotonic_ns()
        self._hands[index].take(record.partition.known, record.offset, now_ns)
        try:
            # What waited here while its partition was taken away is another's to do.
            if record.partition.open:
                record.outcome = await self._work(record, now_ns / 1e9)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            record.outcome = Failed(error)
        self._hands[index].clear()
        self._free.append(index)
        self._finished += 1
        self.ended.put(record)
