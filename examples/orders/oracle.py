"""What really happened, read from Kafka and from files, without asking kworker."""

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

Position = tuple[int, int]
"""(partition, offset) of an order in the source topic."""
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Orders:
    """The producer's ledger: the orders that Kafka acknowledged, and the total of each."""

    totals: dict[Position, Decimal]
    failed: int

    @classmethod
    def of(cls, ledger: Path) -> "Orders":
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        totals = {
            (line["partition"], line["offset"]): Decimal(str(line["total"]))
            for line in lines
            if "failed" not in line
        }
        return cls(totals, len(lines) - len(totals))

    def undone(self, times: Counter[Position]) -> Counter[int]:
        """How many orders of each partition are not among these."""
        return Counter(partition for partition, _ in self.totals.keys() - times.keys())

    def total(self, times: Counter[Position]) -> Decimal:
        """The sum over these orders, each counted so many times."""
        return sum((self.totals[position] * n for position, n in times.items()), Decimal(0))


@dataclass
class Seen:
    """What has been read of the results so far: how often each order, and their totals."""

    times: Counter[Position] = field(default_factory=Counter)
    total: Decimal = Decimal(0)
    first_ms: int = 0
    last_ms: int = 0

    def add(self, message: Message) -> None:
        source = dict(message.headers() or ())["kworker-source"].decode()
        _, partition, offset, _ = source.rsplit("/", 3)
        self.times[int(partition), int(offset)] += 1
        self.total += Decimal(str(json.loads(message.value())["total"]))
        _, at_ms = message.timestamp()
        self.first_ms = min(self.first_ms or at_ms, at_ms)
        self.last_ms = max(self.last_ms, at_ms)

    @property
    def repeated(self) -> int:
        return self.times.total() - len(self.times)


class Results:
    """Reads the results as any other consumer would: committed ones, no group, from the start."""

    def __init__(self, servers: str, topic: str) -> None:
        self.seen = Seen()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "orders-demo-oracle",  # the client insists; nothing is committed
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        self._partitions = _partitions(self._consumer, topic)
        self._consumer.assign([TopicPartition(topic, p, 0) for p in self._partitions])

    def read(self, seconds: float) -> None:
        """Takes what arrives within this time."""
        first = self._consumer.poll(seconds)
        for message in [first] if first else []:
            self._take(message)
        for message in self._consumer.consume(5000, 0):
            self._take(message)

    def read_to_end(self) -> None:
        """Takes everything there is. Call it when nothing is written any more."""
        ended: set[int] = set()
        while len(ended) < len(self._partitions):
            message = self._consumer.poll(TIMEOUT_S)
            if message is None:
                raise TimeoutError("the results cannot be read to their end")
            if not self._take(message):
                ended.add(message.partition())
            else:
                ended.discard(message.partition())

    def _take(self, message: Message) -> bool:
        """False for the end of a partition."""
        error = message.error()
        if error and error.code() == KafkaError._PARTITION_EOF:
            return False
        if error:
            raise KafkaException(error)
        self.seen.add(message)
        return True

    def close(self) -> None:
        self._consumer.close()


def lag(servers: str, group: str, topic: str) -> int:
    """Records of the topic beyond what the group has committed."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        wanted = [TopicPartition(topic, p) for p in _partitions(consumer, topic)]
        left = 0
        for committed in consumer.committed(wanted, timeout=TIMEOUT_S):
            low, high = consumer.get_watermark_offsets(committed, timeout=TIMEOUT_S)
            left += high - max(committed.offset, low)
        return left
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    return sorted(consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
