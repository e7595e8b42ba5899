"""Delay partitions: their first records, held in memory until due, and how many of them."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile

from kworker.core.ledger import Ledger
from kworker.core.message import PartitionId, RawMessage
from kworker.delay.routes import SKEW_MS, DelayedRecord


class DelayPartition:
    """The first records of one delay partition, until each has been forwarded.

    Owned by the delay process's thread, for one assignment. A delay topic is in order
    of time, so whoever is behind the first has to wait for it.
    """

    __slots__ = ("bytes", "committed", "delay_ms", "held", "ledger")

    def __init__(self, delay_ms: int, position: int | None) -> None:
        self.delay_ms = delay_ms
        self.committed = position
        self.ledger = Ledger(position)
        self.held: deque[DelayedRecord] = deque()
        self.bytes = 0

    def take(self, raw: RawMessage, now_ms: int) -> None:
        """A record has come; one that came before is not taken again."""
        if self.ledger.deliver(raw.offset()):
            waiting = DelayedRecord(raw, self.delay_ms, now_ms)
            self.held.append(waiting)
            self.bytes += waiting.size

    @property
    def leaves_ms(self) -> int | None:
        """When the first may leave."""
        return self.held[0].leaves_ms if self.held else None

    def due(self, now_ms: int) -> Iterator[DelayedRecord]:
        """From the first on, those that may leave now."""
        return takewhile(lambda waiting: waiting.leaves_ms <= now_ms, self.held)

    def set_back(self, now_ms: int) -> None:
        """The clock was: nobody waits for longer than who comes now, or that one waits for all."""
        latest_ms = now_ms + SKEW_MS + self.delay_ms
        for waiting in self.held:
            waiting.leaves_ms = min(waiting.leaves_ms, latest_ms)

    def position(self, gone: int) -> int | None:
        """What may be committed when the first `gone` have been forwarded."""
        beyond = next(islice(self.held, gone, None), None)
        return self.ledger.end if beyond is None else beyond.raw.offset()

    def reached(self, position: int) -> None:
        """The group has this position: what is below it was forwarded."""
        self.committed = position
        while self.held and self.held[0].raw.offset() < position:
            waiting = self.held.popleft()
            self.bytes -= waiting.size
            self.ledger.settle([waiting.raw.offset()])


@dataclass(frozen=True, slots=True)
class HoldPolicy:
    """How much is held of all partitions together; the rest waits in Kafka.

    Each has an equal share. Pausing throws away what was prefetched, so it is not done
    to a partition all of whose records leave within `soon_ms`, up to twice the limits.
    """

    records_max: int
    bytes_max: int
    soon_ms: int = 1_000

    def to_pause(
        self,
        heads: Mapping[PartitionId, DelayPartition],
        paused: Collection[PartitionId],
        now_ms: int,
    ) -> frozenset[PartitionId]:
        """Those that hold their share, or half of it if they are paused already."""
        share = 1 / max(1, len(heads))
        overfull = self._fill(heads.values()) >= 2.0
        return frozenset(
            at
            for at, head in heads.items()
            if head.held
            and self._fill([head]) >= share * (0.5 if at in paused else 1.0)
            and (overfull or head.held[-1].leaves_ms > now_ms + self.soon_ms)
        )

    def _fill(self, heads: Collection[DelayPartition]) -> float:
        """How full the limits are with these."""
        records = sum(len(head.held) for head in heads)
        size = sum(head.bytes for head in heads)
        return max(records / self.records_max, size / self.bytes_max)
