"""The topic that every contender reads, and the position where its group begins."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kworker.core.headers import ATTEMPT, DUE, SOURCE

TOPIC = "bench"
DISTINCT = "distinct-keys"
HOT = "hot-key"
PARTITIONS = 8
KEYS = 10_000
RECORD_BYTES = 200
TIMEOUT_S = 30.0
_ASK_S = 0.1
ALL = 1 << 62  # records
DELAY, DELAY_S = "10m", 600
HOT_EVERY = 100  # in the topic HOT, one of so many records has the hot key

Key = Callable[[int], str]
"""Returns the key of the order with this number."""


def _random_keys() -> Key:
    chance = random.Random(11)
    return lambda _: f"customer-{int(chance.random() * KEYS):05}"


def distinct_key(order_id: int) -> str:
    return f"customer-{order_id:07}"


def hot_key(order_id: int) -> str:
    return "customer-hot" if order_id % HOT_EVERY == 0 else distinct_key(order_id)


def values(count: int, size: int, key: Key | None = None) -> Iterator[tuple[str, str]]:
    """Yields `count` orders as JSON of about `size` bytes, with the customer as the key.

    Without `key`, customers come in a random order.
    """
    key = key or _random_keys()
    for order_id in range(count):
        customer = key(order_id)
        order = f'{{"order_id": {order_id}, "customer": "{customer}", "total": {order_id % 997}.5'
        yield customer, f'{order}, "note": "{"n" * (size - len(order) - 13)}"}}'


def create(servers: str, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": servers})  # has to live until the answer
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(TIMEOUT_S)


def fill(
    servers: str,
    topic: str,
    count: int,
    *,
    key: Key | None = None,
    sources: bool = False,
    partitions: int = PARTITIONS,
) -> None:
    """Creates the topic and writes `count` orders. Raises if one is refused.

    For `key` see `values`. With `sources` they are results, and say what they came of.
    """
    create(servers, topic, partitions)
    orders = enumerate(values(count, RECORD_BYTES, key))
    write(
        servers,
        topic,
        (
            {"key": customer, "value": value, "headers": _source(number) if sources else []}
            for number, (customer, value) in orders
        ),
    )


def _source(number: int) -> list[tuple[str, bytes]]:
    source = f"orders/{number % PARTITIONS}/{number}/1700000000000".encode()
    return [("kworker-source", source)]


def append(servers: str, topic: str, count: int) -> None:
    """Writes `count` orders to a topic that is there. Raises if one is refused."""
    orders = values(count, RECORD_BYTES)
    write(servers, topic, ({"key": key, "value": value} for key, value in orders))


def write(servers: str, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes records, given as arguments of `Producer.produce`. Raises if one is refused.

    In batches of 16 KB, the default of Kafka's own producer. In librdkafka's, of 1 MB, a topic
    comes as thousands of records of one partition, then of the next: that is few keys at a time.
    """
    refused: list[object] = []

    def report(error: object, _: Message) -> None:
        if error:
            refused.append(error)

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.size": 16_384,
            "queue.buffering.max.messages": 500_000,
            "on_delivery": report,
            "log_level": 3,  # hides warnings about a broker that has just started
        }
    )
    for record in records:
        _send(producer, topic, record)
    if producer.flush(TIMEOUT_S) or refused:
        raise RuntimeError(f"{topic} could not be filled: {refused[:1] or 'no answer'}")


def _send(producer: Producer, topic: str, record: Mapping[str, Any]) -> None:
    while True:
        try:
            producer.produce(topic, **record)
        except BufferError:
            producer.poll(0.1)  # the queue is full: let some be acknowledged
        else:
            return


def retries(count: int, due_ms: int) -> Iterator[dict[str, Any]]:
    """Yields records of the delay topic, as a worker writes them DELAY_S before they are due."""
    for number in range(count):
        partition = number % PARTITIONS
        headers = [
            (SOURCE, b"%s/%d/%d/0" % (TOPIC.encode(), partition, number)),
            (ATTEMPT, b"2"),
            (DUE, b"%d" % due_ms),
        ]
        yield {
            "key": b"%d" % number,
            "value": b"{}",
            "partition": partition,
            "timestamp": due_ms - 1000 * DELAY_S,
            "headers": headers,
        }


def wait_for_retries(servers: str, run: str, count: int, due_s: float | None = None) -> None:
    """Writes `count` records to a run's delay topic; by default they are due in DELAY_S."""
    due_s = time.time() + DELAY_S if due_s is None else due_s
    write(servers, delay_topic(run), retries(count, round(due_s * 1000)))


def delay_topic(run: str) -> str:
    return f"{run}.retry.{DELAY}"


class Group:
    """A consumer group's position on a topic, read and set without joining the group."""

    def __init__(self, servers: str, group: str, topic: str = TOPIC) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False}
        )
        self._topic = topic
        self._ends = ends(self._consumer, topic)

    def begin(self, records: int) -> int:
        """Moves the group so that about `records` remain, evenly; returns their number."""
        each = -(-records // len(self._ends))
        starts = {p: max(0, end - each) for p, end in self._ends.items()}
        places = [TopicPartition(self._topic, p, offset) for p, offset in starts.items()]
        self._consumer.commit(offsets=places, asynchronous=False)
        return sum(self._ends[p] - offset for p, offset in starts.items())

    @classmethod
    def skip(cls, servers: str, group: str, topic: str) -> None:
        """Moves a group to the end of the topic."""
        skipping = cls(servers, group, topic)
        skipping.begin(0)
        skipping.close()

    def left(self) -> int:
        """The number of records after the committed positions."""
        asked = [TopicPartition(self._topic, p) for p in self._ends]
        committed = self._consumer.committed(asked, timeout=TIMEOUT_S)
        return sum(self._ends[place.partition] - max(0, place.offset) for place in committed)

    def close(self) -> None:
        self._consumer.close()


def count_records(servers: str, topic: str, *, committed: bool = True) -> int:
    """Counts the records, without those of aborted transactions or with them.

    End offsets count the markers of transactions, too.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "counting",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        left = ends(consumer, topic)
        consumer.assign([TopicPartition(topic, p, 0) for p in left])
        found = 0
        while left:
            for record in consumer.consume(10_000, 1.0):
                if (error := record.error()) is None:
                    found += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.pop(record.partition() or 0, None)
    finally:
        consumer.close()
    return found


def ends(consumer: Consumer, topic: str) -> dict[int, int]:
    """The end offset of each partition."""
    partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return {p: _end(consumer, TopicPartition(topic, p)) for p in partitions}


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """Asks again while the broker is not the leader of a partition that has just been created."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)[1]
        except KafkaException as error:
            not_yet = error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
            if not not_yet or time.monotonic() > deadline:
                raise
            time.sleep(_ASK_S)
