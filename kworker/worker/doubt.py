"""When nobody knows what became of a transaction: what to ask, and what the answer means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kworker.clients.kafka import At, Refused
from kworker.core.offset_map import Committed
from kworker.core.record import Record
from kworker.worker.intake import Fenced
from kworker.worker.transacting import TransactionPolicy


class FencedByTwin(Fenced):
    """Another process has taken this worker's transactional id."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A transaction that may be there or not: its records, and the positions sent with it."""

    records: Sequence[Record]
    sent: Mapping[At, Committed]

    @property
    def asked(self) -> set[At]:
        """The partitions whose positions tell, or are needed to go on."""
        return {*self.sent, *map(_at, self.records)}

    def resolved(self, held: Mapping[At, Committed | None]) -> tuple[list[Record], list[Record]]:
        """The records that are there, and those that never were, by what the group holds."""
        there = {at for at, positions in self.sent.items() if held.get(at) == positions}
        settled = [record for record in self.records if _at(record) in there]
        return settled, [record for record in self.records if _at(record) not in there]


class Fences:
    """Whether who fences us is our own past, or a twin."""

    def __init__(self, policy: TransactionPolicy) -> None:
        self._policy = policy
        self._excused_until = float("-inf")

    def mind(self, refused: Refused, begun_at: float | None, now: float) -> None:
        """Hears of each doubt, and when its transaction began. Raises FencedByTwin.

        Our own past may fence: with a transaction that was open for too long, or with what is
        still under way after a doubt that passes.
        """
        if refused.passing:
            self._excused_until = now + self._policy.excuse_s
            return
        expired = begun_at is not None and now - begun_at >= self._policy.limit_s
        if not expired and now >= self._excused_until:
            raise FencedByTwin(f"its transactional id is used by another process: {refused}")
        self._excused_until = float("-inf")


def _at(record: Record) -> At:
    return record.partition.topic, record.partition.number
