"""The topic that every contender reads, and the position where its group begins."""

import random
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "bench"
DISTINCT = "distinct-keys"
HOT = "hot-key"
PARTITIONS = 8
KEYS = 10_000
RECORD_BYTES = 200
TIMEOUT_S = 30.0
ALL = 1 << 62  # records
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
    size: int = RECORD_BYTES,
    *,
    key: Key | None = None,
    sources: bool = False,
    partitions: int = PARTITIONS,
) -> None:
    """Creates the topic and writes `count` records of `size` bytes. Raises if one is refused.

    For `key` see `values`. With `sources` they are results, and say what they came of.
    """
    create(servers, topic, partitions)
    append(servers, topic, count, size, key=key, sources=sources)


def append(
    servers: str,
    topic: str,
    count: int,
    size: int = RECORD_BYTES,
    *,
    key: Key | None = None,
    sources: bool = False,
) -> None:
    """Writes records to a topic that is there, as `fill` does."""
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
            "queue.buffering.max.messages": 500_000,
            "on_delivery": report,
            "log_level": 3,  # hides warnings about a broker that has just started
        }
    )
    for number, (customer, value) in enumerate(values(count, size, key)):
        source = f"orders/{number % PARTITIONS}/{number}/1700000000000".encode()
        _send(producer, topic, customer, value, [("kworker-source", source)] if sources else [])
    if producer.flush(TIMEOUT_S) or refused:
        raise RuntimeError(f"the topic could not be filled: {refused[:1] or 'no answer'}")


def _send(
    producer: Producer, topic: str, key: str, value: str, headers: list[tuple[str, bytes]]
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, headers=headers)
        except BufferError:
            producer.poll(0.1)  # the queue is full: let some be acknowledged
        else:
            return


def wait_for_retries(servers: str, topic: str, count: int) -> None:
    """Writes records to a delay topic as a worker does; none is due for ten minutes."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50})
    due_ms = int((time.time() + 600) * 1000)
    for number in range(count):
        partition = number % PARTITIONS
        headers = [
            ("kworker-source", b"%s/%d/%d/0" % (TOPIC.encode(), partition, number)),
            ("kworker-attempt", b"2"),
            ("kworker-due", b"%d" % due_ms),
        ]
        producer.produce(topic, b"{}", b"%d" % number, partition, headers=headers)
    if producer.flush(TIMEOUT_S):
        raise RuntimeError(f"{topic} could not be filled")


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
                if record.error() is None:
                    found += 1
                elif record.error().code() == KafkaError._PARTITION_EOF:
                    left.pop(record.partition(), None)
    finally:
        consumer.close()
    return found


def ends(consumer: Consumer, topic: str) -> dict[int, int]:
    """The end offset of each partition."""
    partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return {
        p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=TIMEOUT_S)[1]
        for p in partitions
    }
