"""One run of a handler: the message that it is given, and its outcome."""

import inspect
import math
from collections.abc import Awaitable, Callable

import structlog

from kworker.core.failure import Failure
from kworker.core.outcome import NO_RESULTS, Outcome
from kworker.core.record import Record
from kworker.message import Message
from kworker.worker.handlers.loader import Handlers
from kworker.worker.handlers.results import ResultEncoder

_LOG = structlog.get_logger()

Invoke = Callable[[Record, int], Outcome]
"""Runs the handler for a record that began at a monotonic time in ns; may raise anything."""
AsyncInvoke = Callable[[Record, int], Awaitable[Outcome]]
"""The same, on the loop."""


def make_invoke(
    handlers: Handlers, encoder: ResultEncoder, timeout_s: float, attempts: float = math.inf
) -> Invoke:
    """Runs a record's handler on the calling thread.

    A run may take `timeout_s`; of a record that keeps failing there are `attempts`. A
    record with an `on_dead` call has its handler's `dead` called instead.
    """
    only, of, encode = handlers.only, handlers.of, encoder.encode
    timeout_ns = int(timeout_s * 1e9)
    new = object.__new__

    def run_one(record: Record, began_ns: int) -> Outcome:
        message = new(Message)  # and not by its constructor, which is for people
        message._raw = record.raw
        message._attempt = record.attempt
        message._attempts = attempts
        message._deadline_ns = began_ns + timeout_ns
        returned = only(message) if only else of(record.raw.topic())(message)
        return NO_RESULTS if returned is None else encode(record, returned)

    return _telling(run_one, handlers, attempts, timeout_ns) if handlers.has_on_dead else run_one


def make_async_invoke(
    handlers: Handlers, encoder: ResultEncoder, timeout_s: float, attempts: float = math.inf
) -> AsyncInvoke:
    """Runs a record's handler on the loop; all else as `make_invoke`."""
    only, of, encode = handlers.only, handlers.of, encoder.encode
    timeout_ns = int(timeout_s * 1e9)
    new = object.__new__

    async def run_one(record: Record, began_ns: int) -> Outcome:
        message = new(Message)  # and not by its constructor, which is for people
        message._raw = record.raw
        message._attempt = record.attempt
        message._attempts = attempts
        message._deadline_ns = began_ns + timeout_ns
        returned = await (only(message) if only else of(record.raw.topic())(message))
        return NO_RESULTS if returned is None else encode(record, returned)

    if handlers.has_on_dead:
        return _async_telling(run_one, handlers, attempts, timeout_ns)
    return run_one


def message_of(record: Record, attempts: float, deadline_ns: int) -> Message:
    """What a handler is given of a record, where a call more does not matter."""
    message = object.__new__(Message)
    message._raw = record.raw
    message._attempt = record.attempt
    message._attempts = attempts
    message._deadline_ns = deadline_ns
    return message


def _telling(run_one: Invoke, handlers: Handlers, attempts: float, timeout_ns: int) -> Invoke:
    """`run_one`, but for records of which a `dead` is told."""

    def run_or_tell(record: Record, began_ns: int) -> Outcome:
        if (call := record.on_dead) is None:
            return run_one(record, began_ns)
        message = message_of(record, attempts, began_ns + timeout_ns)
        try:
            if dead := handlers.on_dead_of(message.topic):
                dead(message, call.error)
        except BaseException as error:  # noqa: BLE001 - whatever it raises, the outcome stands
            _warn(message, error)
        return call.letter

    return run_or_tell


def _async_telling(
    run_one: AsyncInvoke, handlers: Handlers, attempts: float, timeout_ns: int
) -> AsyncInvoke:
    """The same, on the loop, where `dead` is a function or a coroutine function."""

    async def run_or_tell(record: Record, began_ns: int) -> Outcome:
        if (call := record.on_dead) is None:
            return await run_one(record, began_ns)
        message = message_of(record, attempts, began_ns + timeout_ns)
        try:
            if dead := handlers.on_dead_of(message.topic):
                told = dead(message, call.error)
                if inspect.isawaitable(told):
                    await told
        except BaseException as error:  # noqa: BLE001 - whatever it raises, the outcome stands
            _warn(message, error)
        return call.letter

    return run_or_tell


def _warn(message: Message, error: BaseException) -> None:
    _LOG.warning(
        "the handler's dead() raised; the dead letter is written all the same",
        record=f"{message.topic}/{message.partition}/{message.offset}",
        error=str(Failure.of(error)),
    )
