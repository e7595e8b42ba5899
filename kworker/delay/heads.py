"""What waits at the head of each delay partition, and how much of it is held in memory."""

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


class RefusedPartitions:
    """Which partitions rest, and which are forwarded alone, after a transaction was refused.

    One of those in it may be to blame, so each is tried by itself: what cannot be written
    keeps nobody else's records waiting. Owned by the delay process's thread; times are
    monotonic seconds.
    """

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._alone: set[PartitionId] = set()
        self._rests: dict[PartitionId, tuple[float, str]] = {}  # until when, and why

    def refused(self, partitions: Collection[PartitionId], why: str, now: float) -> None:
        """A transaction with these was refused."""
        if len(partitions) > 1:
            self._alone.update(partitions)
            return
        for at in partitions:
            self._alone.add(at)
            self.rest(at, why, now)

    def rest(self, at: PartitionId, why: str, now: float) -> None:
        """This one's first record cannot go now."""
        self._rests[at] = (now + self._rest_s, why)

    def accepted(self, partitions: Collection[PartitionId]) -> None:
        """Records of these were forwarded, or the partitions are another's now."""
        self._alone.difference_update(partitions)
        for at in partitions:
            self._rests.pop(at, None)

    def chosen(self, ready: Collection[PartitionId], now: float) -> list[PartitionId]:
        """Whose records go into the next transaction."""
        awake = [at for at in ready if self.rests_until(at) <= now]
        alone = [at for at in awake if at in self._alone]
        return alone[:1] or awake

    def alone(self, at: PartitionId) -> bool:
        return at in self._alone

    def rests_until(self, at: PartitionId) -> float:
        return self._rests[at][0] if at in self._rests else 0.0

    @property
    def reasons(self) -> list[str]:
        """Why anything rests, each reason once."""
        return list(dict.fromkeys(why for _, why in self._rests.values()))
