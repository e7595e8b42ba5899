"""Records for tests that need no Kafka."""

from collections.abc import Iterable

from kworker.core.message import Fields, Headers
from kworker.core.outcome import Output
from kworker.core.record import Partition, Record


def a_partition(
    topic: str = "orders", number: int = 0, *, position: int | None = 0, known: int = 0
) -> Partition:
    return Partition(topic, number, 1, known, position)


def a_record(
    partition: Partition,
    offset: int = 0,
    *,
    lane: object = None,
    size: int = 100,
    key: bytes | None = None,
    value: bytes | None = b"{}",
    headers: Headers = (),
    timestamp: int = 1_700_000_000_123,
) -> Record:
    at = (partition.topic, partition.number, offset)
    return Record(partition, offset, lane, size, Fields(at, timestamp, key, value, headers))


def with_outputs(record: Record, outputs: Iterable[Output]) -> Record:
    """As it comes back from a handler that returned results."""
    record.outcome = list(outputs)
    return record
