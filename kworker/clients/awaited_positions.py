"""Repeats requests for the data that an assignment needs, inside the rebalance callback."""

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
    """The methods of `KafkaConsumer`, and of its in-memory twin, that read positions."""

    def positions(
        self, partitions: Iterable[PartitionId], timeout_s: float
    ) -> dict[PartitionId, Committed | None]: ...
    def hidden(self, partitions: Iterable[PartitionId]) -> list[PartitionId]: ...


class AwaitedPositions:
    """Repeats requests for data that an assignment needs, such as positions, until they succeed.

    Owned by the poll thread, which waits here inside the rebalance callback. The wait has no limit:
    an open transaction hides the positions that it commits. If that transaction hangs, it never
    times out, so an operator has to abort it.
    """

    def __init__(self, goes_on: Callable[[], bool]) -> None:
        """`goes_on` writes the heartbeat that the supervisor reads.

        It returns False once the process has to stop.
        """
        self.problem: str | None = None
        self._goes_on = goes_on

    def positions(
        self, client: PositionReader, partitions: list[PartitionId], ready: Callable[[], None]
    ) -> dict[PartitionId, Committed | None] | None:
        """Returns the committed positions; None if the process has to stop before they are known.

        Kafka does not report positions that an open transaction may change. A predecessor of
        this process may have left such a transaction open. So `ready` is called before each
        request: it ends that transaction, or waits for its end. If `ready` raises
        KafkaRequestError, this method calls `ready` again after a short wait.
        """

        def read() -> dict[PartitionId, Committed | None]:
            ready()
            return client.positions(partitions, ASK_S)

        return self.answer(read, partial(_why, client, partitions))

    def answer(
        self, request: Callable[[], _Answer], why: Callable[[KafkaRequestError], str]
    ) -> _Answer | None:
        """Repeats `request` until it succeeds; returns None if the process has to stop first.

        `why` turns each KafkaRequestError into a text. The attribute `problem` has this text until
        this method returns; each new text is logged.
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
