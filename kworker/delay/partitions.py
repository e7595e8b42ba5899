"""Delay partitions: their first records, held in memory until due, and the limit on these."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile

from kworker.core.ledger import Ledger
from kworker.core.message import PartitionId, RawMessage
from kworker.delay.routes import SKEW_MS, DelayedRecord


class DelayPartition:
    """The first records of one delay partition, until each has been forwarded.

    Owned by the delay process's thread, until the partition is revoked. A delay topic is in
    order of time, so each record waits for all records before it.
    """

    __slots__ = ("bytes", "committed", "delay_ms", "held", "ledger")

    def __init__(self, delay_ms: int, position: int | None) -> None:
        self.delay_ms = delay_ms
        self.committed = position
        self.ledger = Ledger(position)
        self.held: deque[DelayedRecord] = deque()
        self.bytes = 0

    def add(self, raw: RawMessage, now_ms: int) -> None:
        """Holds a fetched record; ignores a record that was fetched before."""
        if self.ledger.deliver(raw.offset()):
            waiting = DelayedRecord(raw, self.delay_ms, now_ms)
            self.held.append(waiting)
            self.bytes += waiting.size

    @property
    def leaves_ms(self) -> int | None:
        """The time (ms since 1970) from which the first record may leave; None without records."""
        return self.held[0].leaves_ms if self.held else None

    def due(self, now_ms: int) -> Iterator[DelayedRecord]:
        """Yields the records that may leave now, from the first on."""
        return takewhile(lambda waiting: waiting.leaves_ms <= now_ms, self.held)

    def clock_set_back(self, now_ms: int) -> None:
        """Shortens the waits of held records, after the clock was set back.

        Afterwards, no wait ends later than the partition's delay plus SKEW_MS after `now_ms`.
        """
        latest_ms = now_ms + SKEW_MS + self.delay_ms
        for waiting in self.held:
            waiting.leaves_ms = min(waiting.leaves_ms, latest_ms)

    def position_after(self, count: int) -> int | None:
        """The position to commit once the first `count` of the held records are forwarded.

        None if the group has no position for this partition and no record was delivered yet.
        """
        beyond = next(islice(self.held, count, None), None)
        return self.ledger.end if beyond is None else beyond.raw.offset()

    def advance_to(self, position: int) -> None:
        """Drops the records below this position, which the group has committed."""
        self.committed = position
        while self.held and self.held[0].raw.offset() < position:
            waiting = self.held.popleft()
            self.bytes -= waiting.size
            self.ledger.settle([waiting.raw.offset()])


@dataclass(frozen=True, slots=True)
class HoldPolicy:
    """The limits on the records that all delay partitions together hold in memory.

    Further records wait in Kafka. Each partition has an equal share of the limits, and is paused
    when its share is full. Pausing discards prefetched records. So a partition is not paused yet if
    all its held records may leave within `soon_ms`, unless all partitions together hold twice the
    limits.
    """

    records_max: int
    bytes_max: int
    soon_ms: int = 1_000

    def to_pause(
        self,
        partitions: Mapping[PartitionId, DelayPartition],
        paused: Collection[PartitionId],
        now_ms: int,
    ) -> frozenset[PartitionId]:
        """Returns the partitions to pause, because they hold enough records.

        A partition is paused once it holds its share of the limits, and resumed below half of that.
        If all its records leave soon, it is paused later: see `HoldPolicy`.
        """
        share = 1 / max(1, len(partitions))
        overfull = self._fill(partitions.values()) >= 2.0
        return frozenset(
            at
            for at, partition in partitions.items()
            if partition.held
            and self._fill([partition]) >= share * (0.5 if at in paused else 1.0)
            and (overfull or partition.held[-1].leaves_ms > now_ms + self.soon_ms)
        )

    def _fill(self, partitions: Collection[DelayPartition]) -> float:
        """Returns the fraction of the limits that these partitions use; 1.0 is full."""
        records = sum(len(partition.held) for partition in partitions)
        size = sum(partition.bytes for partition in partitions)
        return max(records / self.records_max, size / self.bytes_max)
