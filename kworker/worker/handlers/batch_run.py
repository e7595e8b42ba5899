"""Batches on their way through a handler: part by part, until each record has ended once."""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from kworker.core.batch import NOT_ATTEMPTED, NotAttempted
from kworker.core.bisection import Bisection, PartOutcomes, returned
from kworker.core.outcome import Failed, Outcome
from kworker.core.record import Record
from kworker.instance.scoreboard import Hand
from kworker.message import Message
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.invocation import make_async_invoke, make_invoke, message_of
from kworker.worker.handlers.loader import Handlers
from kworker.worker.handlers.results import ResultEncoder
from kworker.worker.handlers.signature import Batching
from kworker.worker.handlers.thread_pool import place_of

RunBatch = Callable[["HandlerBatch"], None]
"""Runs a batch until each of its records has ended; what it raises is theirs that have not."""
AsyncRunBatch = Callable[["HandlerBatch"], Awaitable[None]]
"""The same, on the loop."""


class HandlerBatch:
    """Records that one handler is called with, until each has its outcome.

    Made by the poll thread, then its runner's. There is a hand for each record, since
    any of them may be what ends the process. Without `batching` it is a single record,
    of a handler that takes one at a time, or one of which a handler is told. Until its
    runner begins, the poll thread may have its records back: `take` gives them to one of both.
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
        self._hand_of = dict(zip(records, hands, strict=True))
        self._completed = completed
        self._waiting = deque([records])
        self._bisection: Bisection[Record] | None = None  # its runner's, from its begin

    def take(self) -> Sequence[Record]:
        """Its records, for the first that asks, who begins or withdraws them; nothing after."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return ()

    def next(self) -> list[Record]:
        """What to run now, in hand; nothing when all have ended.

        What waited here while its partition was taken away is another's to do.
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
            if not records:  # withdrawn, and no more its runner's to end
                self._hand_of.clear()
            self._bisection = Bisection(records)
        return self._bisection

    def raised(self, part: Sequence[Record], error: BaseException) -> PartOutcomes:
        """How the records of a part ended; nothing when it is run again in smaller ones."""
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

    def fail(self, error: BaseException) -> None:
        """What has not ended fails with what it, or its handler, made kworker raise."""
        self._begun()
        for record in list(self._hand_of):
            self.end(record, Failed(error))

    def wake(self) -> None:
        """Some have ended."""
        self._completed.wake()

    def _hold(self, records: Sequence[Record]) -> None:
        now_ns = time.monotonic_ns()
        for record in records:
            self._hand_of[record].take(place_of(record), now_ns)


def make_run_batch(
    handlers: Handlers, encoder: ResultEncoder, timeout_s: float, attempts: float
) -> RunBatch:
    """Runs a batch on the calling thread. A call may take `timeout_s`."""
    one = make_invoke(handlers, encoder, timeout_s, attempts)
    calls = _Calls(encoder, timeout_s, attempts)

    def run_single(batch: HandlerBatch) -> None:
        for record in batch.next():
            try:
                outcome = one(record, time.monotonic_ns())
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
                outcome = Failed(error)
            batch.end(record, outcome)

    def run(batch: HandlerBatch) -> None:
        if (batching := batch.batching) is None:
            return run_single(batch)
        while part := calls.next(batch, batching):
            try:
                # What it returned may raise as well, being a list of the user's own kind.
                ends = returned(len(part.records), batching.call(part.items, part.messages))
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
                ends = batch.raised(part.records, error)
            calls.end(batch, part, ends)
        return None

    return run


def make_async_run_batch(
    handlers: Handlers, encoder: ResultEncoder, timeout_s: float, attempts: float
) -> AsyncRunBatch:
    """Runs a batch on the loop."""
    one = make_async_invoke(handlers, encoder, timeout_s, attempts)
    calls = _Calls(encoder, timeout_s, attempts)

    async def run_single(batch: HandlerBatch) -> None:
        for record in batch.next():
            try:
                outcome = await one(record, time.monotonic_ns())
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
                outcome = Failed(error)
            batch.end(record, outcome)

    async def run(batch: HandlerBatch) -> None:
        if (batching := batch.batching) is None:
            return await run_single(batch)
        while part := calls.next(batch, batching):
            try:
                # What it returned may raise as well, being a list of the user's own kind.
                value = await batching.call(part.items, part.messages)
                ends = returned(len(part.records), value)
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
                ends = batch.raised(part.records, error)
            calls.end(batch, part, ends)
        return None

    return run


class _Part(NamedTuple):
    """What a handler is called with, and of which records that is made."""

    records: list[Record]
    items: list[Any]
    messages: list[Message]


class _Calls:
    """What comes before and after each call of a batch handler. Stateless."""

    def __init__(self, encoder: ResultEncoder, timeout_s: float, attempts: float) -> None:
        self._encoder = encoder
        self._timeout_ns = int(timeout_s * 1e9)
        self._attempts = attempts

    def next(self, batch: HandlerBatch, batching: Batching) -> _Part | None:
        """The next call; what cannot be decoded ends before it."""
        while records := batch.next():
            part = self._decoded(batch, batching, records)
            if part.records:
                return part
            batch.wake()
        return None

    def end(self, batch: HandlerBatch, part: _Part, ends: PartOutcomes) -> None:
        """Gives each record of a call its outcome; none of them when its halves will tell."""
        for record, end in zip(part.records, ends, strict=False):
            batch.end(record, self._outcome(record, end))
        batch.wake()

    def _decoded(self, batch: HandlerBatch, batching: Batching, records: Sequence[Record]) -> _Part:
        deadline_ns = time.monotonic_ns() + self._timeout_ns
        part = _Part([], [], [])
        for record in records:
            message = message_of(record, self._attempts, deadline_ns)
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
        except BaseException as error:  # noqa: BLE001 - what cannot be written is its outcome
            return Failed(error)
