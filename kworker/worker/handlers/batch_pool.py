"""The pool for batch handlers: threads or an event loop, with the interface of the other pools."""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from queue import SimpleQueue
from typing import ClassVar, NoReturn, Protocol

from kworker.core.record import Partition, Record
from kworker.instance.hand import Hand
from kworker.log.running import this_thread
from kworker.worker.handlers.async_pool import SLACK_LEAST_S
from kworker.worker.handlers.batch_buffer import BatchBuffers
from kworker.worker.handlers.batch_run import AsyncRunBatch, HandlerBatch, RunBatch
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.handler_loop import HandlerLoop
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.loop_watch import LoopWatch
from kworker.worker.handlers.pool import Take


class BatchRunners(Protocol):
    """The threads or the loop that run batches, `most` at once. Finished batches go to `done`."""

    most: int
    done: deque[HandlerBatch]

    def start(self) -> None: ...
    def begin(self, batch: HandlerBatch) -> None: ...
    def look(self, *, has_work: bool) -> None: ...
    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None: ...
    def stop(self) -> None: ...


class BatchPool:
    """Collects the records of each batch handler into batches, which `runners` run.

    A batch is due when it is full, or when its oldest record has waited as long as the handler's
    setting `wait` says. If several batches are due, the one with the oldest record begins first.
    A batch takes one of `hands`, entries of the scoreboard, for each of its records. Buffered
    records keep their lane (the queue of one key) busy, so a batch never has two records of one
    lane. Owned by the poll thread.
    """

    runs_in_order: ClassVar[bool] = False
    one_is_enough: ClassVar[bool] = False
    runs_chunks: ClassVar[bool] = False

    def __init__(
        self,
        handlers: Handlers,
        runners: BatchRunners,
        hands: Sequence[Hand],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.completed = CompletionQueue()
        self._runners = runners
        self._free = list(hands)
        self._clock = clock
        self._buffers = BatchBuffers(handlers, len(hands))
        self._running: set[HandlerBatch] = set()
        self._times = self.completed.new_times()

    def start(self) -> None:
        self._runners.start()

    def feed(self, take: Take) -> int:
        """Calls `take` for records while the buffers have room; returns the number taken."""
        buffers = self._buffers
        fed = 0
        while buffers.room > 0 and (records := take(buffers.room)):
            assert isinstance(records, deque)  # not chunks
            now = self._clock()
            buffers.add(records, now)
            fed += len(records)
            self._begin(now)
        return fed

    @property
    def has_work(self) -> bool:
        """True if a batch runs, or is due; records in a batch that is not due do not count."""
        return bool(self._running) or self._buffers.longest_due(self._clock()) is not None

    def slack_s(self) -> float:
        """Returns the seconds that the poll loop may sleep before it collects this pool's outcomes.

        Returns 0 if a batch may begin, so that the poll loop gives the pool records soon.
        """
        return 0.0 if len(self._running) < self._runners.most else SLACK_LEAST_S

    def reclaim(self, now: float) -> list[Record]:
        """Begins the batches that are due. Called at each turn of the poll thread.

        Returns an empty list, because no record is taken back.
        """
        self._begin(now)
        self._runners.look(has_work=bool(self._running))
        return []

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        """Takes back the buffered records of the partitions in `going`.

        Also takes back every batch that a runner has received but not begun. Called by the poll
        thread.
        """
        back = self._buffers.withdraw(going)
        for batch in self._running:
            back += batch.take()
        return back

    def flush(self) -> None:
        """Makes all buffered records due, to begin at the next turn."""
        self._buffers.flush()

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        """Makes a forked child call `end` once the handler that forked it ends or awaits.

        The child runs nothing else.
        """
        for batch in self._running:
            batch.stopped = True
        self._runners.after_fork_in_child(end)

    def stop(self) -> None:
        """Lets no further call of a handler begin. Does not wait for running calls."""
        for batch in self._running:
            batch.stopped = True
        self._runners.stop()

    def _begin(self, now: float) -> None:
        self._collect()
        while len(self._running) < self._runners.most:
            buffer = self._buffers.longest_due(now)
            if buffer is None or buffer.next_size > len(self._free):
                return
            records = self._buffers.take(buffer)
            hands = [self._free.pop() for _ in records]
            batch = HandlerBatch(records, hands, buffer.batching, self.completed)
            self._running.add(batch)
            self._runners.begin(batch)

    def _collect(self) -> None:
        done = self._runners.done
        while done:
            batch = done.popleft()
            self._running.remove(batch)
            for call_ns in batch.calls_ns:
                self._times.runs.add(1, call_ns)
            if batch.waited:
                self._times.waits.add(batch.waited, batch.waited_ns)
            self._free += batch.hands


class ThreadRunners:
    """Runs batches in a fixed number of threads, each batch in one of them."""

    def __init__(self, run_batch: RunBatch, threads: int) -> None:
        self.most = threads
        self.done: deque[HandlerBatch] = deque()
        self._run_batch = run_batch
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

    def look(self, *, has_work: bool) -> None:
        """Does nothing, because a handler that does not end blocks only its own thread."""

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        self._end_copy = end

    def stop(self) -> None:
        for _ in self._threads:
            self._batches.put(None)

    def _serve(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._run_batch(batch)
            except BaseException as error:  # noqa: BLE001 - the pool would lack this thread
                batch.fail(error)
            if self._end_copy is not None:
                self._end_copy()
            this_thread().running = None
            self.done.append(batch)
            batch.wake()  # there is room for the next


class LoopRunners:
    """Runs up to `concurrency` batches at once on one asyncio event loop."""

    def __init__(self, run_batch: AsyncRunBatch, concurrency: int, loop: HandlerLoop) -> None:
        self.most = concurrency
        self.done: deque[HandlerBatch] = deque()
        self._run_batch = run_batch
        self._loop = loop
        self._watch = LoopWatch(loop)

    def start(self) -> None:
        """Does nothing, because the loop runs since the handlers were opened."""

    def begin(self, batch: HandlerBatch) -> None:
        self._loop.call(self._loop.spawn, self._run, deque([batch]))

    def look(self, *, has_work: bool) -> None:
        """Checks if a handler blocks the event loop; if so, logs which code. See `LoopWatch`."""
        self._watch.turn(has_work=has_work)

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None:
        self._loop.after_fork_in_child(end)

    def stop(self) -> None:
        self._loop.stop()

    async def _run(self, begun: deque[HandlerBatch]) -> None:
        batch = begun.pop()
        task = self._loop.hold()
        try:
            await self._run_batch(batch)
        except BaseException as error:  # noqa: BLE001 - the pool would lack its hands
            batch.fail(error)
        self._loop.release(task)
        self.done.append(batch)
        batch.wake()
