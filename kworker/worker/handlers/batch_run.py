"""The run of a batch by a handler: part by part, until each record has ended once."""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kworker.core.batch import NOT_ATTEMPTED, NotAttempted
from kworker.core.bisection import Bisection, PartOutcomes
from kworker.core.outcome import Failed, Outcome
from kworker.core.record import Record
from kworker.instance.hand import Hand
from kworker.log.running import TASK, this_thread
from kworker.worker.handlers.batch_call import BatchPart, await_handler, call_handler
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.invocation import (
    limits_of,
    make_async_steps,
    make_invoke,
    message_of,
)
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.results import ResultEncoder
from kworker.worker.handlers.signature import Batching
from kworker.worker.handlers.thread_pool import place_of
from kworker.worker.handlers.tracing import UNTRACED, Tracing

RunBatch = Callable[["HandlerBatch"], None]
"""Runs a batch until each record has ended; an exception fails the records that have not."""
AsyncRunBatch = Callable[["HandlerBatch"], Awaitable[None]]
"""A coroutine function that does the same."""


class HandlerBatch:
    """A batch of records for one handler, until each record has its outcome.

    Made by the poll thread, then used by the thread or coroutine that runs it. Each record has one
    of `hands`, an entry of the scoreboard. The entry names the record while a call with that record
    runs. If the process dies, every record that is named there becomes a suspect. If `batching` is
    None, the batch is a single record: either its handler takes one record at a time, or the record
    is for the `dead` method of its handler. The poll thread may withdraw a batch that has not
    begun: `take` returns the records to its first caller only, either the poll thread or the
    runner.
    """

    def __init__(
        self,
        records: Sequence[Record],
        hands: Sequence[Hand],
        batching: Batching | None,
        completed: CompletionQueue,
    ) -> None:
        self.hands = hands
        self.batching = batching
        self.stopped = False  # written by the poll thread: no further part begins
        self.calls_ns: list[int] = []  # how long each call of the handler lasted
        self.waited = 0  # records that waited for their first run, ...
        self.waited_ns = 0  # ... so long together
        self._hand_of = dict(zip(records, hands, strict=True))
        self._completed = completed
        self._waiting = deque([records])
        self._bisection: Bisection[Record] | None = None  # the runner's, once it has begun
        self._called_ns = 0

    def take(self) -> Sequence[Record]:
        """Returns the records to the first caller, and nothing after that."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return ()

    def next(self) -> list[Record]:
        """Returns the records of the next call, after noting them in the scoreboard.

        Returns an empty list when all records have ended or the pool has stopped. A record
        whose partition was revoked meanwhile ends as not attempted.
        """
        bisection = self._begun()
        while not self.stopped and (part := bisection.next()):
            going = [record for record in part if record.partition.open]
            for record in part:
                if not record.partition.open:
                    self.end(record, NOT_ATTEMPTED)
            if going:
                self._hold(going)
                return going
            self.wake()
        return []

    def _begun(self) -> Bisection[Record]:
        if self._bisection is None:
            records = self.take()
            if not records:  # withdrawn: not for the runner to end
                self._hand_of.clear()
            self._bisection = Bisection(records)
        return self._bisection

    def raised(self, part: Sequence[Record], error: BaseException) -> PartOutcomes:
        """Returns the outcomes of `part`, the records of a call that raised.

        Returns an empty list if these records run again in smaller parts.
        """
        bisection = self._begun()
        if not (ends := bisection.raised(part, error)):
            for record in part:
                self._hand_of[record].clear()
        for record in bisection.given_up:
            self.end(record, NOT_ATTEMPTED)
        return ends

    def end(self, record: Record, outcome: Outcome) -> None:
        record.outcome = outcome
        self._hand_of.pop(record).clear()
        self._completed.add(record)

    def note_call(self) -> None:
        """Stores how long the last call of the handler took. Called when that call has ended."""
        self.calls_ns.append(time.monotonic_ns() - self._called_ns)

    def fail(self, error: BaseException) -> None:
        """Gives the outcome `Failed(error)` to every record that has none."""
        self._begun()
        for record in list(self._hand_of):
            self.end(record, Failed(error))

    def wake(self) -> None:
        """Wakes the poll thread, which collects the records that have ended."""
        self._completed.wake()

    def _hold(self, records: Sequence[Record]) -> None:
        if not self._called_ns:
            self._note_waits(records, time.monotonic_ns())
        self._called_ns = time.monotonic_ns()
        for record in records:
            self._hand_of[record].take(place_of(record), self._called_ns)

    def _note_waits(self, records: Sequence[Record], now_ns: int) -> None:
        new = [record.taken_ns for record in records if record.is_first_run]
        self.waited = len(new)
        self.waited_ns = len(new) * now_ns - sum(new)


def make_run_batch(
    handlers: Handlers,
    encoder: ResultEncoder,
    timeout_s: float,
    attempts: float,
    tracing: Tracing = UNTRACED,
) -> RunBatch:
    """Returns a function that runs a batch on the calling thread.

    The deadline of a call is `timeout_s` after its start. A record runs at most `attempts` times.
    Handlers find both in their messages.
    """
    one = tracing.invoke(make_invoke(handlers, encoder, timeout_s, attempts))
    call = tracing.batch_call(call_handler)
    calls = _Calls(encoder, timeout_s, attempts)

    def run_single(batch: HandlerBatch) -> None:
        for record in batch.next():
            try:
                outcome = one(record, time.monotonic_ns(), this_thread())
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is the outcome
                outcome = Failed(error)
            batch.note_call()
            batch.end(record, outcome)

    def run(batch: HandlerBatch) -> None:
        if (batching := batch.batching) is None:
            return run_single(batch)
        while part := calls.next(batch, batching):
            this_thread().running = part.messages  # for its log lines
            try:
                ends = call(batching, part)
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is the outcome
                ends = batch.raised(part.records, error)
            calls.end(batch, part, ends)
        return None

    return run


def make_async_run_batch(
    handlers: Handlers,
    encoder: ResultEncoder,
    timeout_s: float,
    attempts: float,
    tracing: Tracing = UNTRACED,
) -> AsyncRunBatch:
    """Returns a coroutine function that runs a batch. For the parameters see `make_run_batch`."""
    one = tracing.async_steps(make_async_steps(handlers, encoder, timeout_s, attempts)).in_one()
    call = tracing.async_batch_call(await_handler)
    calls = _Calls(encoder, timeout_s, attempts)

    async def run_single(batch: HandlerBatch) -> None:
        for record in batch.next():
            try:
                outcome = await one(record, time.monotonic_ns())
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is the outcome
                outcome = Failed(error)
            batch.note_call()
            batch.end(record, outcome)

    async def run(batch: HandlerBatch) -> None:
        if (batching := batch.batching) is None:
            return await run_single(batch)
        while part := calls.next(batch, batching):
            TASK.set(part.messages)  # for its log lines
            try:
                ends = await call(batching, part)
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is the outcome
                ends = batch.raised(part.records, error)
            calls.end(batch, part, ends)
        return None

    return run


class _Calls:
    """Prepares the calls to a batch handler, and gives the records their outcomes. Stateless."""

    def __init__(self, encoder: ResultEncoder, timeout_s: float, attempts: float) -> None:
        self._encoder = encoder
        self._limits = limits_of(timeout_s, attempts)

    def next(self, batch: HandlerBatch, batching: Batching) -> BatchPart | None:
        """Returns the records and arguments of the next call; None if no further call is due.

        A record that cannot be decoded fails without a call.
        """
        while records := batch.next():
            part = self._decoded(batch, batching, records)
            if part.records:
                return part
            batch.wake()
        return None

    def end(self, batch: HandlerBatch, part: BatchPart, ends: PartOutcomes) -> None:
        """Gives each record of `part` its outcome from `ends`.

        If `ends` is empty, the records run again.
        """
        batch.note_call()
        for record, end in zip(part.records, ends, strict=False):
            batch.end(record, self._outcome(record, end))
        batch.wake()

    def _decoded(
        self, batch: HandlerBatch, batching: Batching, records: Sequence[Record]
    ) -> BatchPart:
        began_ns = time.monotonic_ns()
        part = BatchPart([], [], [])
        for record in records:
            message = message_of(record, self._limits, began_ns)
            try:
                item = batching.item(message)
            except BaseException as error:  # noqa: BLE001 - a model's validators may raise anything
                batch.end(record, Failed(error))
            else:
                part.records.append(record)
                part.items.append(item)
                part.messages.append(message)
        return part

    def _outcome(self, record: Record, end: Any) -> Outcome:
        try:
            if isinstance(end, NotAttempted):
                return end
            if isinstance(end, BaseException):
                return Failed(end)
            return self._encoder.encode(record, end)
        except BaseException as error:  # noqa: BLE001 - a result that cannot be written is a failure
            return Failed(error)
