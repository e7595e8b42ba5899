"""The replacement for the client of claims in a service without idempotency."""

from collections.abc import Collection, Iterable

from kworker.core.durations import EndTimes
from kworker.core.lanes import Lanes
from kworker.core.record import Partition, Record
from kworker.worker.idempotency.claim_table import ClaimAnswers

_NO_ANSWERS = ClaimAnswers()


class Unclaimed:
    """Replaces `ClaimClient` in a service without idempotency. No record needs a claim there."""

    keeps_outcomes = False
    takes_rows = True
    asking = False
    pending = False
    suspended = False
    problem: str | None = None
    unprotected = 0

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.calls = EndTimes()  # there are none
        self.take = lanes.take
        self.take_behind = lanes.take_behind
        self.put_back = lanes.put_back

    @property
    def ready(self) -> bool:
        """True if at least one record may run now."""
        return self._lanes.ready

    def start(self) -> None:
        """Does nothing, because there is no claims thread."""

    def room(self) -> int:
        return 0

    def claim(self, records: Iterable[Record]) -> None:
        """Does nothing. It is never called, because `room` returns 0."""

    def turn(self, now: float) -> ClaimAnswers:  # noqa: ARG002 - at any time
        return _NO_ANSWERS

    def withdraw(self, going: Collection[Partition]) -> list[Record]:  # noqa: ARG002 - of any
        return []

    def close(self, partition: Partition) -> list[Record]:  # noqa: ARG002 - of any
        return []

    def settled(self, records: Iterable[Record]) -> None:
        """Does nothing, because no event is claimed."""

    released = cancelled = hand_over = settled

    def drain(self, deadline: float) -> bool:  # noqa: ARG002 - at any time
        return True
