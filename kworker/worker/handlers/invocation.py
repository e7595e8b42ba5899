"""One run of a handler: its message and its outcome."""

import inspect
import math
from collections.abc import Awaitable, Callable
from sys import getrefcount
from typing import Any, NamedTuple

import structlog

from kworker.core.failure import Failure
from kworker.core.outcome import NO_RESULTS, Outcome
from kworker.core.record import Record
from kworker.log.running import TASK, ThreadCall
from kworker.message import DeliveredMessage, Message, RunLimits
from kworker.worker.handlers.loaded_handlers import Handlers
from kworker.worker.handlers.results import ResultEncoder

_LOG = structlog.get_logger()

Invoke = Callable[[Record, int, ThreadCall], Outcome]
"""Runs the handler for a record, begun at a monotonic time in ns; may raise anything.

Notes the message in the `ThreadCall` of this thread.
"""
AsyncInvoke = Callable[[Record, int], Awaitable[Outcome]]
"""A coroutine function that does the same, and notes the message in its task."""


class AsyncSteps(NamedTuple):
    """The two steps of a run on an event loop, between which the run is awaited.

    `begin` notes the message in the task that calls it. With a coroutine function around both, each
    record would cost 0.5 to 1 µs more (Python 3.11).
    """

    begin: Callable[[Record, int], Awaitable[Any]]
    end: Callable[[Record, Any], Outcome]

    @classmethod
    def of(cls, invoke: AsyncInvoke) -> "AsyncSteps":
        """Returns steps of which the first is the whole run."""
        return cls(invoke, lambda _record, outcome: outcome)

    def in_one(self) -> AsyncInvoke:
        """Returns a coroutine function that takes both steps."""
        begin, end = self

        async def run_one(record: Record, began_ns: int) -> Outcome:
            return end(record, await begin(record, began_ns))

        return run_one


def make_invoke(
    handlers: Handlers, encoder: ResultEncoder, timeout_s: float, attempts: float = math.inf
) -> Invoke:
    """Returns a function that runs a record's handler on the calling thread.

    The deadline of a run is `timeout_s` after its start. A record runs at most `attempts` times.
    Handlers find both in their message. If the record has `on_dead` set, it becomes a dead letter:
    the handler's `dead` method is called instead of the handler.
    """
    only, of, encode = handlers.only, handlers.of, encoder.encode
    limits = limits_of(timeout_s, attempts)

    def run_one(record: Record, began_ns: int, thread: ThreadCall) -> Outcome:
        message = thread.running
        # To make another, and to free the last, takes a fifth of the run of a cheap handler.
        if type(message) is not DeliveredMessage or getrefcount(message) != UNSHARED:
            message = thread.running = DeliveredMessage()  # for its log lines
        message._raw = record.raw
        message._attempt = record.attempt
        message._limits = limits
        message._began_ns = began_ns
        returned = only(message) if only else of(record.raw.topic())(message)
        return NO_RESULTS if returned is None else encode(record, returned)

    return _with_on_dead(run_one, handlers, limits) if handlers.has_on_dead else run_one


def make_async_steps(
    handlers: Handlers, encoder: ResultEncoder, timeout_s: float, attempts: float = math.inf
) -> AsyncSteps:
    """Returns the steps that run a handler. For the parameters see `make_invoke`."""
    only, of = handlers.only, handlers.of
    limits = limits_of(timeout_s, attempts)
    set_running = TASK.set

    def begin(record: Record, began_ns: int) -> Awaitable[Any]:
        message = DeliveredMessage()
        message._raw = record.raw
        message._attempt = record.attempt
        message._limits = limits
        message._began_ns = began_ns
        set_running(message)  # for its log lines
        run: Awaitable[Any] = only(message) if only else of(record.raw.topic())(message)
        return run

    steps = AsyncSteps(begin, encoder.encode)
    if not handlers.has_on_dead:
        return steps
    return AsyncSteps.of(_with_async_on_dead(steps.in_one(), handlers, limits))


def make_async_invoke(
    handlers: Handlers, encoder: ResultEncoder, timeout_s: float, attempts: float = math.inf
) -> AsyncInvoke:
    """Returns a coroutine function that runs a handler. For the parameters see `make_invoke`."""
    return make_async_steps(handlers, encoder, timeout_s, attempts).in_one()


def limits_of(timeout_s: float, attempts: float) -> RunLimits:
    """Returns the limits that messages refer to, for `timeout_s` seconds of each run."""
    return RunLimits(attempts, int(timeout_s * 1e9))


def message_of(record: Record, limits: RunLimits, began_ns: int) -> Message:
    """Returns the message that a handler gets for a record. Hot paths inline this for speed."""
    message = DeliveredMessage()
    message._raw = record.raw
    message._attempt = record.attempt
    message._limits = limits
    message._began_ns = began_ns
    return message


def _references_of_unshared() -> int:
    """Counts the references to a message that nothing has but its thread, and who asks."""
    thread = ThreadCall()
    message = thread.running = DeliveredMessage()
    return getrefcount(message)


UNSHARED = _references_of_unshared()
"""What `getrefcount` returns for a message that only its thread and a local variable refer to."""


def _with_on_dead(run_one: Invoke, handlers: Handlers, limits: RunLimits) -> Invoke:
    """Returns a function like `run_one` that also calls handlers' `dead` methods.

    A record with `on_dead` set becomes a dead letter. For such a record, the `dead` method of its
    handler is called instead of the handler.
    """

    def run_or_call_dead(record: Record, began_ns: int, thread: ThreadCall) -> Outcome:
        if (call := record.on_dead) is None:
            return run_one(record, began_ns, thread)
        message = message_of(record, limits, began_ns)
        thread.running = message
        try:
            if dead := handlers.on_dead_of(message.topic):
                dead(message, call.error)
        except BaseException as error:  # noqa: BLE001 - whatever it raises, the outcome stands
            _warn(message, error)
        return call.letter

    return run_or_call_dead


def _with_async_on_dead(run_one: AsyncInvoke, handlers: Handlers, limits: RunLimits) -> AsyncInvoke:
    """Returns a coroutine function like `run_one` that also calls handlers' `dead` methods.

    A record with `on_dead` set becomes a dead letter. For such a record, the `dead` method of its
    handler is called instead of the handler. `dead` may return an awaitable.
    """

    async def run_or_call_dead(record: Record, began_ns: int) -> Outcome:
        if (call := record.on_dead) is None:
            return await run_one(record, began_ns)
        message = message_of(record, limits, began_ns)
        TASK.set(message)
        try:
            if dead := handlers.on_dead_of(message.topic):
                called = dead(message, call.error)
                if inspect.isawaitable(called):
                    await called
        except BaseException as error:  # noqa: BLE001 - whatever it raises, the outcome stands
            _warn(message, error)
        return call.letter

    return run_or_call_dead


def _warn(message: Message, error: BaseException) -> None:
    _LOG.warning(
        "the handler's dead() raised an exception; the dead letter is written nevertheless",
        record=f"{message.topic}:{message.partition}:{message.offset}",
        error=str(Failure.of(error)),
    )
