"""Kafka seen by a bystander: writing with a ledger, reading without a group."""

import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from kworker.core.message import Headers
from tests.support import maps
from tests.support.ledgers import At, Position, Produced, append, now_ns
from tests.support.waiting import eventually

TIMEOUT_S = 60.0
BYTES_MAX = 10_000_000  # of a record; what its topic takes, its brokers tell
SOURCE = "kworker-source"
SEVERE = 2  # of syslog's levels: that a broker goes away belongs to many tests

Raw = Any
"""`confluent_kafka.Message`, of whose types everything may be None."""


@dataclass(frozen=True, slots=True)
class New:
    """A record to write. Without a partition its key decides, without a time it is now."""

    identity: str
    value: bytes | None
    key: bytes | None = None
    partition: int = -1
    headers: Headers = ()
    time_ms: int = 0


class Read(NamedTuple):
    """A record as a reader finds it."""

    at: At
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    time_ms: int

    @property
    def source(self) -> Position:
        """Where a result comes from, by its header."""
        topic, partition, offset, _ = self.headers[SOURCE].decode().rsplit("/", 3)
        return topic, int(partition), int(offset)


class Writer:
    """A producer whose ledger says of each record whether Kafka has it."""

    def __init__(self, bootstrap: str, ledger: Path) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": 65536,
            "message.max.bytes": BYTES_MAX,
            "log_level": SEVERE,
        }
        self._producer = Producer(settings)
        self._ledger = ledger
        self.acked: list[Produced] = []
        self.refused: list[str] = []

    def write(self, topic: str, records: Iterable[New]) -> list[Produced]:
        """Writes all and waits until all are acknowledged; those, in order of their acks."""
        before = len(self.acked)
        self.begin(topic, records)
        self.finish()
        return self.acked[before:]

    def tried(self, topic: str, new: New) -> Produced | None:
        """The same of one that may be refused: None, then."""
        before = len(self.acked)
        self.begin(topic, [new])
        self._producer.flush(TIMEOUT_S)
        self.refused.clear()
        return self.acked[-1] if len(self.acked) > before else None

    def begin(self, topic: str, records: Iterable[New]) -> None:
        """Hands all to the client, which writes them meanwhile; `hear` and `finish` follow."""
        for new in records:
            self._queue(topic, new)

    def hear(self) -> None:
        """Notes what was acknowledged so far; returns at once."""
        self._producer.poll(0)

    def finish(self) -> None:
        """Waits until all are acknowledged."""
        left = self._producer.flush(TIMEOUT_S)
        assert not left, f"{left} records without an answer: the run is invalid"
        assert not self.refused, f"not written: {self.refused[:3]}"

    def _queue(self, topic: str, new: New) -> None:
        while True:
            try:
                self._producer.produce(
                    topic,
                    new.value,
                    new.key,
                    new.partition,
                    on_delivery=self._report(new),
                    timestamp=new.time_ms,
                    headers=list(new.headers),
                )
            except BufferError:
                self._producer.poll(0.1)
                continue
            self._producer.poll(0)
            return

    def _report(self, new: New) -> Callable[[KafkaError | None, Raw], None]:
        def told(error: KafkaError | None, message: Raw) -> None:
            if error is not None:
                self.refused.append(f"{new.identity}: {error}")
            else:
                key = "" if new.key is None else new.key.hex()
                at = (message.topic(), message.partition())
                self.acked.append(Produced(new.identity, at, message.offset(), key, now_ns()))
            state = "failed" if error else "acked"
            place = f"{message.topic()}\t{message.partition()}\t{message.offset()}"
            append(self._ledger, f"{new.identity}\t{place}\t{state}\n")

        return told


def numbered(count: int, *, keys: int, first: int = 0, size: int = 0) -> Iterator[New]:
    """Records `first`, `first` + 1 …, over so many keys, of at least `size` bytes."""
    for number in range(first, first + count):
        value = str(number).encode().ljust(size, b".")
        yield New(str(number), value, b"key-%d" % (number % keys))


def read_all(bootstrap: str, topic: str, *, isolation: str = "read_committed") -> list[Read]:
    """Every record that a topic holds."""
    return [_read(message) for message in _messages(bootstrap, topic, None, isolation)]


def messages(bootstrap: str, topic: str) -> list[Raw]:
    """Every committed record, by partition and offset, as the client gives it."""
    found = _messages(bootstrap, topic, None, "read_committed")
    return sorted(found, key=lambda each: (each.partition(), each.offset()))


def messages_of(
    bootstrap: str, topic: str, partition: int, *, isolation: str = "read_uncommitted"
) -> Iterator[Raw]:
    """Every record of one partition, as the client gives it."""
    return _messages(bootstrap, topic, [partition], isolation)


def create_topic(bootstrap: str, name: str, partitions: int, **config: str) -> str:
    """On brokers of a test's own; returns the name."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": SEVERE})
    dotted = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(TIMEOUT_S)
    # Who is asked next may not have heard of it.
    eventually(lambda: led(admin, name) == partitions, what=f"leaders of {name}")
    return name


def change_topic(bootstrap: str, topic: str, **config: str) -> None:
    """As an operator does: returns when its leaders go by it."""
    dotted = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=dotted)
    [changed] = _admin(bootstrap).incremental_alter_configs([resource]).values()
    changed.result(TIMEOUT_S)
    if size := int(config.get("max_message_bytes", 0)):
        fits, large = os.urandom(size - 200), os.urandom(size)
        eventually(lambda: takes(bootstrap, topic, fits) and not takes(bootstrap, topic, large))
    if policy := config.get("cleanup_policy"):
        eventually(lambda: takes(bootstrap, topic, b"v", key=None) is (policy != "compact"))


def takes(bootstrap: str, topic: str, value: bytes, key: bytes | None = b"probe") -> bool:
    """Whether a topic takes such a record; nobody sees the one that tells."""
    reports: list[object] = []
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": f"probe-{uuid.uuid4().hex}",
        "message.max.bytes": BYTES_MAX,
        "log_level": SEVERE,
    }
    producer = Producer(settings)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, value, key, on_delivery=lambda error, _: reports.append(error))
    producer.flush(TIMEOUT_S)
    producer.abort_transaction(TIMEOUT_S)
    return [error is None for error in reports] == [True]


def led(admin: AdminClient, name: str) -> int:
    """How many partitions of a topic have a leader, as far as clients are told."""
    found = admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions
    return sum(1 for partition in found.values() if partition.leader >= 0)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Returns when nothing is written to it: for some time its broker takes records into it."""
    client = _consumer(bootstrap, "read_uncommitted")
    places = [TopicPartition(topic, partition) for partition in _partitions(client, topic)]

    def refused(place: TopicPartition) -> bool:
        try:
            client.get_watermark_offsets(place, TIMEOUT_S)
        except KafkaException as error:
            return bool(error.args[0].code() != KafkaError._TIMED_OUT)
        return False

    try:
        # From then on the client asks whoever led them, whether or not they are listed.
        eventually(lambda: not any(map(refused, places)), what=f"{topic} is there")
        _admin(bootstrap).delete_topics([topic])[topic].result(TIMEOUT_S)
        eventually(lambda: all(map(refused, places)), what=f"{topic} is gone")
    finally:
        client.close()


def make_again(bootstrap: str, topic: str, partitions: int) -> None:
    """Deletes a topic, and creates another of its name, at once: whoever reads it may not see.

    Returns when the new one is written to: for some time its broker takes records into the old.
    """
    _admin(bootstrap).delete_topics([topic])[topic].result(TIMEOUT_S)

    def made() -> bool:
        try:
            create_topic(bootstrap, topic, partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False  # it is being deleted
        return True

    def empty() -> bool:
        try:
            return not any(ends(bootstrap, topic).values())
        except KafkaException:
            return False  # neither is there

    eventually(made, what=f"{topic} is there again")
    eventually(empty, what=f"{topic} is the new one")


def names(bootstrap: str, pattern: str) -> set[str]:
    """The topics whose whole names match a regular expression."""
    found = _admin(bootstrap).list_topics(timeout=TIMEOUT_S).topics
    return {name for name in found if re.fullmatch(pattern, name)}


def ends(bootstrap: str, topic: str) -> dict[At, int]:
    """Where each partition of a topic ends now."""
    return {at: high for at, (_, high) in _watermarks(bootstrap, topic).items()}


def visible_ends(bootstrap: str, topic: str) -> dict[At, int]:
    """Where each partition ends for who reads what is committed."""
    admin = _admin(bootstrap)
    numbers = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    asked = {TopicPartition(topic, each): OffsetSpec.latest() for each in numbers}
    told = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
    return {(at.topic, at.partition): found.result(TIMEOUT_S).offset for at, found in told.items()}


def starts(bootstrap: str, topic: str) -> dict[At, int]:
    """Where each partition of a topic begins now."""
    return {at: low for at, (low, _) in _watermarks(bootstrap, topic).items()}


def _watermarks(bootstrap: str, topic: str) -> dict[At, tuple[int, int]]:
    consumer = _consumer(bootstrap, "read_uncommitted")
    try:
        found = {}
        for partition in _partitions(consumer, topic):
            place = TopicPartition(topic, partition)
            found[topic, partition] = consumer.get_watermark_offsets(place, TIMEOUT_S)
        return found
    finally:
        consumer.close()


def committed(bootstrap: str, group: str) -> dict[At, int]:
    """The positions that a group has committed."""
    return {(at.topic, at.partition): at.offset for at in _held(bootstrap, group)}


def named_beyond(bootstrap: str, group: str) -> dict[At, list[range]]:
    """Offsets beyond its positions that a group holds as done."""
    held = _held(bootstrap, group)
    return {
        (at.topic, at.partition): maps.named_beyond(at.offset, at.metadata or "") for at in held
    }


def held_of(bootstrap: str, group: str, topic: str) -> list[TopicPartition]:
    """What a group holds of each partition of a topic, with the metadata."""
    consumer = _member_of(bootstrap, group)
    try:
        asked = [TopicPartition(topic, each) for each in _partitions(consumer, topic)]
        return list(consumer.committed(asked, timeout=TIMEOUT_S))
    finally:
        consumer.close()


def commit(bootstrap: str, group: str, places: list[TopicPartition]) -> None:
    """Commits as nobody's member, so it waits until the group has none."""
    consumer = _member_of(bootstrap, group)

    def taken() -> bool:
        try:
            answer = consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            return False
        return not any(at.error for at in answer or ())

    try:
        eventually(taken, timeout_s=TIMEOUT_S, what="the group takes it: its members are gone")
    finally:
        consumer.close()


def _member_of(bootstrap: str, group: str) -> Consumer:
    """It never subscribes."""
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": SEVERE})


def _held(bootstrap: str, group: str) -> list[TopicPartition]:
    asked = _admin(bootstrap).list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(TIMEOUT_S).topic_partitions or ()
    return [place for place in found if place.offset >= 0]


@lru_cache(maxsize=2)
def _admin(bootstrap: str) -> AdminClient:
    """Kept, because the same is asked again and again until something is so."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": SEVERE})


def _messages(
    bootstrap: str, topic: str, partitions: list[int] | None, isolation: str
) -> Iterator[Raw]:
    consumer = _consumer(bootstrap, isolation)
    try:
        wanted = partitions or _partitions(consumer, topic)
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in wanted])
        left = set(wanted)  # one that is written meanwhile ends more than once
        while left:
            batch = consumer.consume(10_000, 0.05)
            for message in batch:
                error = message.error()
                if error is None:
                    yield message
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(message.partition())
    finally:
        consumer.close()


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    # The client insists on a group's name; nothing here joins it or commits.
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bystander",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Most of these topics are small, and what they hold is asked for again and again.
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 10,
            "log_level": SEVERE,
        }
    )


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    return sorted(consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)


def _read(message: Raw) -> Read:
    return Read(
        (message.topic(), message.partition()),
        message.offset(),
        message.key(),
        message.value(),
        dict(message.headers() or ()),
        message.timestamp()[1],
    )
