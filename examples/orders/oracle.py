"""The facts, read from Kafka and from files, without asking kworker."""

import json
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

Position = tuple[int, int]
"""(partition, offset) of an order in the source topic."""
TIMEOUT_S = 10.0
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


class Order(NamedTuple):
    """A line of the producer's ledger."""

    order_id: int
    total: Decimal
    flaw: str | None


PHANTOM = Order(0, Decimal(0), None)
"""Stands for an order that was never written."""


@dataclass(frozen=True)
class Orders:
    """The producer's ledger: the orders that Kafka acknowledged, by position."""

    acked: dict[Position, Order]
    failed: int = 0

    @classmethod
    def of(cls, ledger: Path) -> "Orders":
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        acked = {
            (line["partition"], line["offset"]): Order(
                line["order_id"], Decimal(str(line["total"])), line["flaw"]
            )
            for line in lines
            if "failed" not in line
        }
        return cls(acked, len(lines) - len(acked))

    def at(self, position: Position) -> Order:
        return self.acked.get(position, PHANTOM)

    def undone(self, done: Set[Position]) -> Counter[int]:
        """The number of orders of each partition that are not among these."""
        return Counter(partition for partition, _ in self.acked.keys() - done)

    def total(self, times: Counter[Position]) -> Decimal:
        """The sum over these orders, each multiplied by its count."""
        return sum((self.at(position).total * n for position, n in times.items()), Decimal(0))


@dataclass
class Seen:
    """The results read so far: the count of each order, and their totals."""

    times: Counter[Position] = field(default_factory=Counter)
    total: Decimal = Decimal(0)
    attempts: dict[Position, int] = field(default_factory=dict)  # the highest, if above 1
    first_ms: int = 0
    last_ms: int = 0

    def add(self, message: Message) -> None:
        headers = dict(message.headers() or ())
        position = _source(headers)
        self.times[position] += 1
        self.total += Decimal(str(json.loads(message.value())["total"]))
        if "kworker-attempt" in headers:
            attempt = int(headers["kworker-attempt"])
            self.attempts[position] = max(attempt, self.attempts.get(position, 1))
        _, at_ms = message.timestamp()
        self.first_ms = min(self.first_ms or at_ms, at_ms)
        self.last_ms = max(self.last_ms, at_ms)

    @property
    def repeated(self) -> int:
        return self.times.total() - len(self.times)


@dataclass
class Dead:
    """The dead letters read so far: the count of each order, and the latest reason."""

    times: Counter[Position] = field(default_factory=Counter)
    reasons: dict[Position, tuple[str, str]] = field(default_factory=dict)  # and the message

    @property
    def repeated(self) -> int:
        return self.times.total() - len(self.times)

    def add(self, message: Message) -> None:
        headers = dict(message.headers() or ())
        position = _source(headers)
        self.times[position] += 1
        reason, told = (headers[f"kworker-{name}"].decode() for name in ("reason", "message"))
        self.reasons[position] = (reason, told)


def _source(headers: dict[str, bytes]) -> Position:
    _, partition, offset, _ = headers["kworker-source"].decode().rsplit("/", 3)
    return int(partition), int(offset)


class Reader:
    """Reads a topic from its beginning, without a group."""

    def __init__(
        self,
        servers: str,
        topic: str,
        take: Callable[[Message], None],
        isolation: str = COMMITTED,
    ) -> None:
        self._take = take
        self._consumer = _consumer(servers, isolation)
        self._partitions = _partitions(self._consumer, topic)
        self._consumer.assign([TopicPartition(topic, p, 0) for p in self._partitions])

    def read(self, seconds: float) -> None:
        """Reads the records that exist; if there are none, those that arrive within this time."""
        first = self._consumer.poll(seconds)
        messages = [first] if first else []
        while messages:
            for message in messages:
                self._record(message)
            messages = self._consumer.consume(5000, 0)

    def read_to_end(self) -> None:
        """Reads to the end. Call it when nothing is written."""
        ended: set[int] = set()
        while len(ended) < len(self._partitions):
            message = self._consumer.poll(TIMEOUT_S)
            if message is None:
                raise TimeoutError("a topic cannot be read to its end")
            if not self._record(message):
                ended.add(message.partition())
            else:
                ended.discard(message.partition())

    def _record(self, message: Message) -> bool:
        """Takes one message; returns False for the end of a partition."""
        error = message.error()
        if error and error.code() == KafkaError._PARTITION_EOF:
            return False
        if error:
            raise KafkaException(error)
        self._take(message)
        return True

    def close(self) -> None:
        self._consumer.close()


def read_all(
    servers: str, topic: str, take: Callable[[Message], None], isolation: str = COMMITTED
) -> None:
    """Reads everything that the topic holds. Call it when nothing is written."""
    reader = Reader(servers, topic, take, isolation)
    try:
        reader.read_to_end()
    finally:
        reader.close()


def lag(servers: str, group: str, topic: str) -> int:
    """The number of records of the topic that the group has not committed."""
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


class HighWatermarks:
    """The ends of a topic, summed over its partitions: for all readers, and for `read_committed`.

    Its clients are made beforehand, since the two ends differ only for moments.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self._clients = [_consumer(servers, isolation) for isolation in (UNCOMMITTED, COMMITTED)]
        partitions = _partitions(self._clients[0], topic)
        self._places = [TopicPartition(topic, partition) for partition in partitions]

    def ask(self) -> tuple[int, int]:
        """Returns both ends, as they are now."""
        by_anybody, of_committed = (
            sum(client.get_watermark_offsets(at, timeout=TIMEOUT_S)[1] for at in self._places)
            for client in self._clients
        )
        return by_anybody, of_committed

    def close(self) -> None:
        for client in self._clients:
            client.close()


def _consumer(servers: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "orders-demo-oracle",  # the client requires one; nothing is committed
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    return sorted(consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
