"""Answers that an assignment needs, requested inside the client's callback until they come."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

import structlog

from kworker.clients.errors import KafkaRequestError
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed

_LOG = structlog.get_logger()
_Answer = TypeVar("_Answer")
ASK_S = 5.0  # the longest that any call inside a callback takes
_ASK_AGAIN_S = 0.5
_LOOK_S = 0.02


class PositionReader(Protocol):
    """The part of `KafkaConsumer`, or its twin, that reads positions."""

    def positions(
        self, partitions: Iterable[PartitionId], timeout_s: float
    ) -> dict[PartitionId, Committed | None]: ...
    def hidden(self, partitions: Iterable[PartitionId]) -> list[PartitionId]: ...


class AwaitedPositions:
    """Waits for committed positions and whatever else an assignment cannot begin without.

    Owned by the thread that polls, in whose callback the group waits anyway. A transaction
    that was left open hides positions, and no time-out of Kafka's ends one that hangs.
    """

    def __init__(self, goes_on: Callable[[], bool]) -> None:
        """`goes_on` beats, and returns False when it is time to end."""
        self.problem: str | None = None
        self._goes_on = goes_on

    def positions(
        self, client: PositionReader, partitions: list[PartitionId], ready: Callable[[], None]
    ) -> dict[PartitionId, Committed | None] | None:
        """Returns the committed positions; None when it was time to end before they were known.

        `ready` ends what hides positions and is our own, or raises KafkaRequestError.
        """

        def read() -> dict[PartitionId, Committed | None]:
            ready()
            return client.positions(partitions, ASK_S)

        return self.answer(read, partial(_why, client, partitions))

    def answer(
        self, request: Callable[[], _Answer], why: Callable[[KafkaRequestError], str]
    ) -> _Answer | None:
        """Repeats `request` until it succeeds; returns None when it was time to end before.

        `why` makes a reason of each refusal.
        """
        answer = None
        while True:
            try:
                answer = request()
                break
            except KafkaRequestError as refused:
                self._say(why(refused))
            if not self._rest():
                break
        self.problem = None
        return answer

    def _say(self, reason: str) -> None:
        if reason != self.problem:
            _LOG.warning(reason)
        self.problem = reason

    def _rest(self) -> bool:
        until = time.monotonic() + _ASK_AGAIN_S
        while goes_on := self._goes_on():
            if time.monotonic() >= until:
                break
            time.sleep(_LOOK_S)
        return goes_on


def _why(client: PositionReader, partitions: list[PartitionId], refused: KafkaRequestError) -> str:
    try:
        hidden = client.hidden(partitions)
    except KafkaRequestError as silent:
        return f"committed positions unknown: the group's coordinator does not answer ({silent})"
    if not hidden:
        return f"committed positions unknown ({refused}); asks again"
    names = ", ".join(f"{topic}/{number}" for topic, number in sorted(hidden))
    return (
        f"the committed position of {names} is hidden by a transaction that has not ended, though"
        " the brokers answer; waits for its end: kworker transactions list says if it hangs, and"
        " kworker transactions abort ends it then"
    )
