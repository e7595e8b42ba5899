"""The producer of Kafka in memory, and how it chooses partitions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from confluent_kafka import KafkaError

from kworker.clients.delivery import Queued, Refused
from kworker.clients.errors import Broken, KafkaRequestError, Oversized, QueueFull
from kworker.clients.memory.broker import MemoryKafka, MemoryTopic, size_of
from kworker.core.message import Fields, PartitionId
from kworker.core.outcome import Output, outputs_of
from kworker.core.plain_results import PlainResults

CLIENT_MAX_BYTES = 1_000_000  # the client's own
_QUEUE_RECORDS = 100_000


class MemoryProducer:
    """The twin of `KafkaProducer` for tests; `poll` writes the records that are queued."""

    def __init__(self, kafka: MemoryKafka, properties: Mapping[str, Any]) -> None:
        self._kafka = kafka
        self._most = int(properties.get("queue.buffering.max.messages", _QUEUE_RECORDS))
        self._most_bytes = int(properties.get("message.max.bytes", CLIENT_MAX_BYTES))
        self._queue: list[tuple[Output, Refused]] = []
        self._unknown: set[str] = set()  # topics that the broker has said do not exist
        self._spread = count()
        self._fatal: str | None = None

    @property
    def fatal(self) -> str | None:
        """The reason why this producer can never write again; None while it can."""
        return self._fatal

    def fail(self, reason: str) -> None:
        """Makes this producer fail for good: it writes nothing any more."""
        self._fatal = reason

    def produce(self, output: Output, refused: Refused) -> None:
        """Queues a record. `poll` calls `refused(error, message)` if the record is not written.

        Raises QueueFull, or KafkaRequestError if the client itself refuses the record.
        """
        if len(self._queue) >= self._most:
            raise QueueFull
        if self._fatal is not None:
            raise KafkaRequestError(self._fatal, retriable=True)
        if output.topic in self._unknown and self._kafka.topic(output.topic) is None:
            raise KafkaRequestError(str(KafkaError(KafkaError._UNKNOWN_TOPIC)), retriable=True)
        if size_of(output) > self._most_bytes:
            raise Oversized(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE).str())
        self._queue.append((output, refused))

    def produce_plain(self, results: PlainResults, refused: Sequence[Refused]) -> Queued:
        """Queues results, as far as this client takes them; see `produce`."""
        return queue_each(self.produce, results, refused)

    def poll(self) -> None:
        """Writes queued records and reports refused ones, if broker and partition answer."""
        if self._fatal is not None or not (self._kafka.up and self._kafka.writable):
            return
        batches: dict[PartitionId, list[tuple[Output, Refused]]] = {}
        queue, self._queue = self._queue, []
        for output, refused in queue:
            topic = self._kafka.topic(output.topic)
            at = (output.topic, -1 if topic is None else partition_of(output, topic, self._spread))
            batches.setdefault(at, []).append((output, refused))
        for at, batch in batches.items():
            self._write(at, batch)

    @property
    def unfinished(self) -> int:
        """The number of records without a delivery report."""
        return len(self._queue)

    def purge(self) -> None:
        """Drops the queued records, and reports them as failed at once."""
        queue, self._queue = self._queue, []
        report(queue, KafkaError._PURGE_QUEUE)

    def _write(self, at: PartitionId, batch: list[tuple[Output, Refused]]) -> None:
        """Writes a whole batch, or nothing if the broker refuses one of its records."""
        topic = self._kafka.topic(at[0])
        if topic is None:
            self._unknown.add(at[0])
            report(batch, KafkaError._UNKNOWN_TOPIC)
        elif at[1] >= len(topic.logs):
            report(batch, KafkaError._UNKNOWN_PARTITION)
        elif at[1] in topic.silent:
            self._queue += [(to_partition(output, at[1]), refused) for output, refused in batch]
        elif codes := topic.refusals([output for output, _ in batch]):
            report(batch, codes)
        else:
            for output, _ in batch:
                headers = tuple(output.headers)
                self._kafka.append(*at, value=output.value, key=output.key, headers=headers)


def queue_each(
    queue: Callable[[Output, Refused], None], results: PlainResults, refused: Sequence[Refused]
) -> Queued:
    """Queues results with `queue`, one after the other."""
    for nth, report in enumerate(refused):
        for output in outputs_of(results.outcome(nth)):
            try:
                queue(output, report)
            except (QueueFull, KafkaRequestError, Broken) as stopped:
                return Queued(nth, stopped)
    return Queued(len(refused), None)


def report(batch: list[tuple[Output, Refused]], codes: int | list[int]) -> None:
    """Reports each output of a batch as failed.

    `codes` is one error code for all outputs, or a list with a code for each of them.
    """
    every = [codes] * len(batch) if isinstance(codes, int) else codes
    for (output, refused), code in zip(batch, every, strict=True):
        refused(KafkaError(code), Fields((output.topic, -1, -1), -1, None, None, ()))


def partition_of(output: Output, topic: MemoryTopic, spread: Iterator[int]) -> int:
    """Returns the partition to which an output is written.

    Takes the partition that the output names. An output that names none goes to the partition of
    its key. An output without a key goes to the next partition of `spread`.
    """
    if output.partition >= 0:
        return output.partition
    chosen = next(spread) if output.key is None else murmur2(output.key) & 0x7FFFFFFF
    return chosen % len(topic.logs)


def to_partition(output: Output, partition: int) -> Output:
    """Returns the output with the partition that was chosen for it."""
    return Output(output.topic, output.key, output.value, output.headers, output.size, partition)


def murmur2(data: bytes) -> int:
    """Returns the hash by which Java's producers, and kworker's, choose a key's partition."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
