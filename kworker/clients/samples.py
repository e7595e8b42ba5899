"""The size of a topic's records, measured on a few of them: Kafka does not report it."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

PLACES = 5  # in a range, evenly spread, for records may have grown, or shrunk
RECORDS_EACH = 40
PATIENCE_S = 2.0  # for the next record
DEADLINE_S = 5.0  # for all of them
_QUIET = logging.getLogger("librdkafka.samples")
_QUIET.setLevel(logging.CRITICAL)
_PROPERTIES = {
    "group.id": "kworker-samples",  # which is never joined
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",  # expired records cannot be measured
    "isolation.level": "read_committed",
    "fetch.message.max.bytes": 1 << 18,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 1 << 12,
}


def record_bytes(
    properties: Mapping[str, Any], topic: str, ranges: Iterable[tuple[int, tuple[int, int]]]
) -> float | None:
    """Estimates the size in bytes of a topic's records, with keys and headers.

    `ranges` has, for each partition, its first offset and the one after its last. Reads a few
    records at several places of each partition, and computes their mean size at each place. Returns
    the largest of these means, or None if no record could be read. Blocks for a second, or for
    `DEADLINE_S` if Kafka is silent.
    """
    consumer = Consumer({**properties, **_PROPERTIES}, logger=_QUIET)
    try:
        deadline = time.monotonic() + DEADLINE_S
        found = [
            mean
            for place in _places(dict(ranges))
            for mean in _means(consumer, topic, place, deadline)
        ]
    except KafkaException:
        return None
    finally:
        consumer.close()
    return max(found, default=None)


def _places(ranges: Mapping[int, tuple[int, int]]) -> Iterator[dict[int, tuple[int, int]]]:
    """Divides each range into `PLACES` parts. The nth item yielded has the nth part of each."""
    for nth in range(PLACES):
        parts = {
            partition: (
                begin + (end - begin) * nth // PLACES,
                begin + (end - begin) * (nth + 1) // PLACES,
            )
            for partition, (begin, end) in ranges.items()
        }
        yield {partition: part for partition, part in parts.items() if part[0] < part[1]}


def _means(
    consumer: Consumer, topic: str, place: Mapping[int, tuple[int, int]], deadline: float
) -> Iterator[float]:
    sizes: dict[int, list[int]] = {partition: [] for partition in place}
    begins = [TopicPartition(topic, p, begin) for p, (begin, _) in place.items()]
    consumer.assign(begins)
    consumer.resume(begins)  # an assignment keeps pauses
    open_partitions = set(place)
    received_at = time.monotonic()
    while open_partitions and received_at + PATIENCE_S > (now := time.monotonic()) < deadline:
        for message in consumer.consume(RECORDS_EACH, 0.1):
            partition = message.partition()
            if partition not in open_partitions:
                continue
            received_at = now
            past = _is_past(message, place[partition][1])
            if not past:
                sizes[partition].append(size_of(message))
            if past or len(sizes[partition]) == RECORDS_EACH:
                open_partitions.discard(partition)
                consumer.pause([TopicPartition(topic, partition)])
    return (sum(each) / len(each) for each in sizes.values() if each)


def _is_past(message: Message, end: int) -> bool:
    if (error := message.error()) is None:
        return (message.offset() or 0) >= end
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    raise KafkaException(error)


def size_of(message: Message) -> int:
    """Returns the size of a record in bytes: its key, value and headers."""
    try:
        headers: Any = message.headers() or ()
    except (SystemError, UnicodeDecodeError):
        headers = ()  # unreadable, so not written by kworker
    header_bytes = sum(len(name) + len(value or b"") for name, value in headers)
    return len(message.key() or b"") + len(message.value() or b"") + header_bytes
