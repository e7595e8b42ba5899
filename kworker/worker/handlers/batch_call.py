"""One call of a batch handler: its records, the arguments made from them, and what it returns."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from kworker.core.bisection import PartOutcomes, returned
from kworker.core.record import Record
from kworker.message import Message
from kworker.worker.handlers.signature import Batching


class BatchPart(NamedTuple):
    """The records of one call of a batch handler, and the arguments made from them."""

    records: list[Record]
    items: list[Any]
    messages: list[Message]


BatchCall = Callable[[Batching, BatchPart], PartOutcomes]
"""Calls the handler; returns what each record ended with. May raise anything."""
AsyncBatchCall = Callable[[Batching, BatchPart], Awaitable[PartOutcomes]]
"""A coroutine function that does the same."""


def call_handler(batching: Batching, part: BatchPart) -> PartOutcomes:
    """Calls the handler; returns the outcome of each record. May raise anything.

    The list that the handler returns may be of the user's own class, whose methods may raise, too.
    """
    return returned(len(part.records), batching.call(part.items, part.messages))


async def await_handler(batching: Batching, part: BatchPart) -> PartOutcomes:
    """Does the same as `call_handler` for a handler that is a coroutine function."""
    return returned(len(part.records), await batching.call(part.items, part.messages))
