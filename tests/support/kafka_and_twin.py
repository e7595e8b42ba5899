"""Two ways to the same face: a real broker and its twin in memory, as the contract needs them."""

import itertools
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kworker.clients.consumer import KafkaConsumer, Listener
from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.consumer import MemoryConsumer
from kworker.clients.memory.producer import MemoryProducer
from kworker.clients.memory.transactor import MemoryTransactor
from kworker.clients.producer import KafkaProducer
from kworker.clients.transactions import KafkaTransactor
from kworker.clients.watch import KafkaWatch
from kworker.config.client_properties import transactional
from kworker.core.message import Headers, PartitionId
from kworker.core.offset_map import TopicIdentity
from tests.support.kafka import change_topic
from tests.support.waiting import eventually

CONSUMER = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "range",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 500,  # by which a member hears that others join and leave
    "fetch.wait.max.ms": 50,
    "topic.metadata.refresh.interval.ms": 1000,
}
CLASSIC_ONLY = {
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
}
PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
}


class Cluster(Protocol):
    """What one contract test asks of Kafka."""

    wait_s: float  # how long a `take` may wait for what is under way

    def create(self, partitions: int = 1, **config: str) -> str: ...
    def write(self, topic: str, partition: int = 0, **record: Any) -> None: ...
    def trim(self, topic: str, partition: int, before: int) -> None: ...
    def change(self, topic: str, **config: str) -> None: ...
    def make_again(self, topic: str) -> None: ...
    def identities(self, topics: Collection[str], timeout_s: float) -> dict[str, TopicIdentity]: ...
    def consumer(self, listener: Listener, group: str, **properties: Any) -> Any: ...
    def producer(self, **properties: Any) -> Any: ...
    def transactor(self, transactional_id: str, **properties: object) -> Any: ...


class Twin:
    """In memory: nothing is ever under way."""

    wait_s = 0.0

    def __init__(self, kafka: MemoryKafka | None = None) -> None:
        self.kafka = kafka or MemoryKafka()
        self._names = itertools.count()

    def create(self, partitions: int = 1, **config: str) -> str:
        name = f"topic-{next(self._names)}"
        self.kafka.create(name, partitions)
        self.change(name, **config)
        return name

    def write(self, topic: str, partition: int = 0, **record: Any) -> None:
        self.kafka.append(topic, partition, **record)

    def trim(self, topic: str, partition: int, before: int) -> None:
        self.kafka.trim(topic, partition, before)

    def change(self, topic: str, **config: str) -> None:
        changed = self.kafka.topic(topic)
        assert changed
        if size := config.get("max_message_bytes"):
            changed.max_message_bytes = int(size)
        changed.compacted = config.get("cleanup_policy") == "compact"

    def make_again(self, topic: str) -> None:
        self.kafka.delete(topic)
        self.kafka.create(topic)

    def identities(self, topics: Collection[str], timeout_s: float) -> dict[str, TopicIdentity]:
        return self.kafka.identities(topics, timeout_s)

    def consumer(self, listener: Listener, group: str, **properties: Any) -> MemoryConsumer:
        return MemoryConsumer(
            self.kafka, {**CONSUMER, "group.id": group, **_dotted(properties)}, listener
        )

    def producer(self, **properties: Any) -> MemoryProducer:
        return MemoryProducer(self.kafka, {**PRODUCER, **_dotted(properties)})

    def transactor(self, transactional_id: str, **properties: object) -> MemoryTransactor:
        return MemoryTransactor(
            self.kafka, {**PRODUCER, **_dotted(properties)}, transactional_id, 10.0
        )


class Real:
    """The broker of this test session."""

    wait_s = 0.05

    def __init__(self, bootstrap: str, topic: Callable[..., str]) -> None:
        self._common = {"bootstrap.servers": bootstrap}
        self._topic = topic
        self._writer = Producer({**self._common, "linger.ms": 0})
        self._admin = AdminClient(self._common)
        self._consumers: list[KafkaConsumer] = []

    def create(self, partitions: int = 1, **config: str) -> str:
        return self._topic("contract", partitions=partitions, **config)

    def write(
        self,
        topic: str,
        partition: int = 0,
        *,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        stamp = int(time.time() * 1000) if timestamp is None else timestamp
        self._writer.produce(
            topic, value, key, partition, headers=list(headers) or None, timestamp=stamp
        )
        assert self._writer.flush(30) == 0

    def trim(self, topic: str, partition: int, before: int) -> None:
        at = TopicPartition(topic, partition, before)
        for future in self._admin.delete_records([at]).values():
            future.result(30)

    def change(self, topic: str, **config: str) -> None:
        """As an operator does; it holds when this returns."""
        change_topic(self._common["bootstrap.servers"], topic, **config)

    def make_again(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(30)
        eventually(lambda: topic not in self._admin.list_topics(timeout=10).topics)
        self._admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)

    def identities(self, topics: Collection[str], timeout_s: float) -> dict[str, TopicIdentity]:
        return KafkaWatch(self._common).identities(topics, timeout_s)

    def consumer(self, listener: Listener, group: str, **properties: Any) -> KafkaConsumer:
        every = {**CONSUMER, **self._common, "group.id": group, **_dotted(properties)}
        if every.get("group.protocol") == "consumer":
            every = {name: value for name, value in every.items() if name not in CLASSIC_ONLY}
        client = KafkaConsumer(every, listener)
        self._consumers.append(client)
        return client

    def end(self) -> None:
        """Lets no member outlive its test."""
        for client in self._consumers:
            client.close()

    def producer(self, **properties: Any) -> KafkaProducer:
        return KafkaProducer({**PRODUCER, **self._common, **_dotted(properties)})

    def transactor(self, transactional_id: str, **properties: object) -> KafkaTransactor:
        given = {**PRODUCER, **self._common, **_dotted(properties)}
        return KafkaTransactor(transactional(given), transactional_id, timeout_s=10.0)


def _dotted(properties: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in properties.items()}


def sized(partitions: Iterable[PartitionId]) -> dict[str, int]:
    """How many partitions of each topic."""
    counts: dict[str, int] = {}
    for topic, _ in partitions:
        counts[topic] = counts.get(topic, 0) + 1
    return counts
