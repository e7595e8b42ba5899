"""The pools of processes with batch handlers, behind the same face as the other pools."""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NoReturn, Protocol

from kworker.core.record import Partition, Record
from kworker.instance.scoreboard import Hand
from kworker.worker.handlers.async_pool import SLACK_S, HandlerLoop
from kworker.worker.handlers.batch_buffer import BatchBuffers
from kworker.worker.handlers.batch_run import AsyncRunBatch, HandlerBatch, RunBatch
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.loader import Handlers
from kworker.worker.handlers.thread_pool import Take


class BatchRunners(Protocol):
    """Runs batches, up to `most` at once; those it is through with are in `done`."""

    most: int
    done: deque[HandlerBatch]

    def start(self) -> None: ...
    def begin(self, batch: HandlerBatch) -> None: ...
    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None: ...
    def stop(self) -> None: ...


class BatchPool:
    """Gathers the records of each batch handler, and has a crew run them.

    A batch begins when it is full, or when its first record has waited for the handler's
    `wait`; the one that waits longest goes first. What is gathered counts as handed over,
    so its lane is busy: no two records of a batch are of one lane. Owned by the poll thread.
    `hands` bounds the records under way: there is one for each.
    """

    def __init__(
        self,
        handlers: Handlers,
        crew: BatchRunners,
        hands: Sequence[Hand],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.completed = CompletionQueue()
        self._crew = crew
        self._free = list(hands)
        self._clock = clock
        self._gatherings = BatchBuffers(handlers, len(hands))
        self._running: set[HandlerBatch] = set()

    def start(self) -> None:
        self._crew.start()

    def feed(self, take: Take) -> int:
        """Takes what batches can be made of now; how many records that was."""
        gatherings = self._gatherings
        fed = 0
        while gatherings.room > 0 and (records := take(gatherings.room)):
            now = self._clock()
            gatherings.add(records, now)
            fed += len(records)
            self._begin(now)
        return fed

    @property
    def has_work(self) -> bool:
        """A batch is under way, or would be if there was room; what is gathered may wait."""
        return bool(self._running) or self._gatherings.longest_due(self._clock()) is not None

    def slack_s(self) -> float:
        """For how long the next outcomes can wait: a moment, as long as no batch could begin."""
        return 0.0 if len(self._running) < self._crew.most else SLACK_S

    def reclaim(self, now: float) -> list[Record]:
        """Nothing; but what has waited long enough begins. Called each turn by the poll thread."""
        self._begin(now)
        return []

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """What has not begun: of `going` all, of others what was with the crew already.

        Called by the poll thread.
        """
        back = self._gatherings.withdraw(going)
        for batch in self._running:
            back += batch.take()
        return back

    def flush(self) -> None:
        """What has been gathered so far begins at the next turn, as far as the crew reaches."""
        self._gatherings.flush()

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        """In a forked child: no part of a batch begins, and `end` is called after its handler."""
        for batch in self._running:
            batch.stopped = True
        self._crew.after_fork_in_child(end)

    def stop(self) -> None:
        """What is called ends, and nothing more is begun; does not wait."""
        for batch in self._running:
            batch.stopped = True
        self._crew.stop()

    def _begin(self, now: float) -> None:
        """Whatever is due, as far as the crew and the hands reach."""
        self._collect()
        while len(self._running) < self._crew.most:
            gathering = self._gatherings.longest_due(now)
            if gathering is None or gathering.next_size > len(self._free):
                return
            records = self._gatherings.take(gathering)
            hands = [self._free.pop() for _ in records]
            batch = HandlerBatch(records, hands, gathering.batching, self.completed)
            self._running.add(batch)
            self._crew.begin(batch)

    def _collect(self) -> None:
        """Places and hands of those that are through."""
        done = self._crew.done
        while done:
            batch = done.popleft()
            self._running.remove(batch)
            self._free += batch.hands


class ThreadRunners:
    """Handler threads, a batch each."""

    def __init__(self, work: RunBatch, threads: int) -> None:
        self.most = threads
        self.done: deque[HandlerBatch] = deque()
        self._work = work
        self._end_copy: Callable[[], NoReturn] | None = None  # in a child that a handler forked
        self._batches: SimpleQueue[HandlerBatch | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"handler-{i}", daemon=True)
            for i in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def begin(self, batch: HandlerBatch) -> None:
        self._batches.put(batch)

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        self._end_copy = end

    def stop(self) -> None:
        for _ in self._threads:
            self._batches.put(None)

    def _serve(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._work(batch)
            except BaseException as error:  # noqa: BLE001 - a thread that ends is missing for all others
                batch.fail(error)
            if self._end_copy is not None:
                self._end_copy()
            self.done.append(batch)
            batch.wake()  # there is room for the next


class LoopRunners:
    """One event loop, with up to `concurrency` batches in flight."""

    def __init__(self, work: AsyncRunBatch, concurrency: int) -> None:
        self.most = concurrency
        self.done: deque[HandlerBatch] = deque()
        self._work = work
        self._loop = HandlerLoop()

    def start(self) -> None:
        self._loop.start()

    def begin(self, batch: HandlerBatch) -> None:
        self._loop.call(self._spawn, batch)

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        self._loop.after_fork_in_child(end)

    def stop(self) -> None:
        self._loop.stop()

    def _spawn(self, batch: HandlerBatch) -> None:
        self._loop.spawn(partial(self._run, batch))

    async def _run(self, batch: HandlerBatch) -> None:
        try:
            await self._work(batch)
        except BaseException as error:  # noqa: BLE001 - its hands are missing for all others
            batch.fail(error)
        self.done.append(batch)
        batch.wake()
