"""One event loop for `async def` handlers, behind the same face as the pool of threads."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence

from kworker.core.outcome import Failed
from kworker.core.record import Record
from kworker.supervisor.scoreboard import Hand
from kworker.worker.ended import Ended
from kworker.worker.pool import Take
from kworker.worker.work import AsyncWork

SLACK_S = 0.001


class LoopPool:
    """Up to as many handlers in flight as there are hands, on one loop in one thread."""

    def __init__(self, work: AsyncWork, hands: Sequence[Hand]) -> None:
        self._work = work
        self._hands = hands
        self._free = list(range(len(hands)))  # touched by the loop's thread only
        self.ended = Ended()
        self._handed = 0  # by the poll thread
        self._finished = 0  # by the loop's thread
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._serve, name="handlers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def feed(self, take: Take) -> int:
        """Takes as many records as handlers may start now; how many that was."""
        free = self._free_now()
        if free and (run := take(free)):
            self.hand(run)
            return len(run)
        return 0

    def slack_s(self) -> float:
        """For how long the next outcomes can wait: a moment, as long as no handler could start."""
        return 0.0 if self._free_now() else SLACK_S

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

    def _free_now(self) -> int:
        return len(self._hands) - (self._handed - self._finished)

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
        self._hands[index].take(record.partition.place + record.offset, now_ns)
        try:
            # What waited here while its partition was taken away is another's to do.
            if record.partition.open:
                record.outcome = await self._work(record, now_ns)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            record.outcome = Failed(error)
        self._hands[index].clear()
        self._free.append(index)
        self._finished += 1
        self.ended.add(record)
        self.ended.tell()
