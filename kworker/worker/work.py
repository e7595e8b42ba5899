"""One run of a handler: the message that it is given, and its outcome."""

from collections.abc import Awaitable, Callable

from kworker.core.message import Message
from kworker.core.outcome import Outcome
from kworker.core.record import Record
from kworker.worker.handler import Handlers
from kworker.worker.results import Results

Work = Callable[[Record, int], Outcome]
"""Runs the handler for a record that began at a monotonic time in ns; may raise anything."""
AsyncWork = Callable[[Record, int], Awaitable[Outcome]]
"""The same, on the loop."""


def work(handlers: Handlers, results: Results, timeout_s: float) -> Work:
    """Runs a record's handler on the calling thread."""
    only, of, outputs = handlers.only, handlers.of, results.outputs
    timeout_ns = int(timeout_s * 1e9)
    new = object.__new__

    def run_one(record: Record, began_ns: int) -> Outcome:
        message = new(Message)  # and not by its constructor, which is for people
        message._raw = record.raw
        message._attempt = record.attempt
        message._last = False  # a failing record is tried again until it works
        message._deadline_ns = began_ns + timeout_ns
        returned = only(message) if only else of(record.partition.topic)(message)
        return None if returned is None else outputs(record, returned)

    return run_one


def async_work(handlers: Handlers, results: Results, timeout_s: float) -> AsyncWork:
    """Runs a record's handler on the loop."""
    only, of, outputs = handlers.only, handlers.of, results.outputs
    timeout_ns = int(timeout_s * 1e9)
    new = object.__new__

    async def run_one(record: Record, began_ns: int) -> Outcome:
        message = new(Message)  # and not by its constructor, which is for people
        message._raw = record.raw
        message._attempt = record.attempt
        message._last = False  # a failing record is tried again until it works
        message._deadline_ns = began_ns + timeout_ns
        returned = await (only(message) if only else of(record.partition.topic)(message))
        return None if returned is None else outputs(record, returned)

    return run_one
