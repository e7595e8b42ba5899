"""The transactional producer of Kafka in memory."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from confluent_kafka import KafkaError

from kworker.clients.delivery import Queued, Refused
from kworker.clients.errors import Abortable, Broken, KafkaRequestError, Oversized, QueueFull
from kworker.clients.memory.broker import MemoryKafka, size_of
from kworker.clients.memory.group import MemoryGroupMetadata, fits
from kworker.clients.memory.producer import (
    CLIENT_MAX_BYTES,
    partition_of,
    queue_each,
    report,
    to_partition,
)
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.outcome import Output
from kworker.core.plain_results import PlainResults

_QUEUE_RECORDS = 100_000


class MemoryTransactor:
    """The twin of `KafkaTransactor` for tests: `commit` writes all produced records, or none.

    No consumer sees records of an open transaction, so every consumer is a read_committed one. In
    each partition that it writes, `commit` also uses up one offset, as a broker does for the marker
    at the end of a transaction.
    """

    def __init__(
        self,
        kafka: MemoryKafka,
        properties: Mapping[str, Any],
        transactional_id: str,
        timeout_s: float,  # noqa: ARG002 - never waits
    ) -> None:
        self._kafka = kafka
        self._id = transactional_id
        self._open = False
        self._most = int(properties.get("queue.buffering.max.messages", _QUEUE_RECORDS))
        self._most_bytes = int(properties.get("message.max.bytes", CLIENT_MAX_BYTES))
        self._outputs: list[Output] = []
        self._queued: list[tuple[Output, Refused]] = []
        self._broken = ""  # only `abort` helps
        self._positions: list[tuple[MemoryGroupMetadata, Mapping[PartitionId, Committed]]] = []
        self._spread = count()

    def open(self) -> None:
        """Fences the previous producer of this transactional id, and aborts its transaction.

        Raises KafkaRequestError if the broker is away.
        """
        if not self._kafka.up:
            raise KafkaRequestError("broker unreachable", retriable=True)
        self._kafka.install(self._id, self)

    def begin(self) -> None:
        """Begins a transaction.

        Raises KafkaRequestError if this producer is fenced, the broker is away, or a transaction is
        open already.
        """
        self._check(opened=False)
        self._open = True

    def produce(self, output: Output) -> None:
        """Adds a record to the transaction.

        Raises KafkaRequestError if this producer is fenced, the broker is away, or no transaction
        is open.
        """
        self._check()
        self._outputs.append(output)

    def queue(self, output: Output, refused: Refused) -> None:
        """Queues a record. `poll` calls `refused(error, message)` if the record is not written.

        Raises QueueFull while too many records are queued, and Oversized if the record is too
        large. Raises Broken if the transaction takes no more records.
        """
        if self._broken or self._kafka.installed(self._id) is not self:
            raise Broken(self.problem())
        if len(self._queued) >= self._most:
            raise QueueFull
        if size_of(output) > self._most_bytes:
            raise Oversized(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE).str())
        self._queued.append((output, refused))

    def queue_plain(self, results: PlainResults, refused: Sequence[Refused]) -> Queued:
        """Queues results, as far as the transaction takes them; see `queue`."""
        return queue_each(self.queue, results, refused)

    def flush(self, wait_s: float) -> None:  # noqa: ARG002 - never waits
        """Does what `poll` does."""
        self.poll()

    def poll(self) -> None:
        """Adds the queued records to the transaction, unless broker or partition do not answer.

        If the broker refuses records of a topic, all queued records of that topic are reported as
        failed, and the transaction can only be aborted.
        """
        if not (self._kafka.up and self._kafka.writable):
            return
        batches: dict[str, list[tuple[Output, Refused]]] = {}
        queued, self._queued = self._queued, []
        for output, refused in queued:
            topic = self._kafka.topic(output.topic)
            if topic is None or not topic.silent:
                batches.setdefault(output.topic, []).append((output, refused))
                continue
            placed = to_partition(output, partition_of(output, topic, self._spread))
            silent = placed.partition in topic.silent
            waits = self._queued if silent else batches.setdefault(output.topic, [])
            waits.append((placed, refused))
        for batch in batches.values():
            outputs = [output for output, _ in batch]
            if codes := self._refusals(outputs):
                self._broken = f"{KafkaError(codes[0]).str()}: current transaction must be aborted"
                report(batch, codes)
            else:
                self._outputs += outputs

    @property
    def unfinished(self) -> int:
        """The number of records without a delivery report."""
        return len(self._queued)

    def problem(self) -> str | None:
        """Returns the reason why the transaction takes no more records; None if it takes more."""
        fenced = self._kafka.installed(self._id) is not self
        return str(KafkaError(KafkaError._FENCED)) if fenced else self._broken or None

    def send_positions(
        self, positions: Mapping[PartitionId, Committed], group_metadata: MemoryGroupMetadata
    ) -> None:
        """Adds a group's positions to the transaction.

        Raises Abortable if the group refuses the positions. Raises KafkaRequestError if this
        producer is fenced, the broker is away, or no transaction is open.
        """
        self._check()
        member = group_metadata.member
        error = group_metadata.group.refusal(member)
        if error is None and group_metadata.generation != group_metadata.group.generation:
            error = KafkaError(KafkaError.ILLEGAL_GENERATION)
        if error is None and not all(map(fits, positions.values())):
            error = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE)
        if error is not None:
            self._broken = str(error)
            raise Abortable(str(error), retriable=True)
        self._positions.append((group_metadata, dict(positions)))
        group_metadata.group.pending[self._id] = positions

    def commit(self) -> None:
        """Commits the transaction.

        Raises KafkaRequestError if this producer is fenced, the broker is away or has refused a
        record, a record has no answer, or no transaction is open.
        """
        self._check()
        self.poll()
        self._check_outputs()
        if self._queued:
            raise KafkaRequestError("Kafka has sent no answer", retriable=True)
        written = {self._write(output) for output in self._outputs}
        for at in written:
            self._kafka.skip(*at)
        for group_metadata, positions in self._positions:
            group_metadata.group.accept(
                group_metadata.member.name, group_metadata.generation, positions
            )
        self._end()

    def abort(self) -> None:
        """Aborts the transaction.

        Raises KafkaRequestError if this producer is fenced, the broker is away, or no transaction
        is open.
        """
        self._check()
        report(self._queued, KafkaError._PURGE_QUEUE)
        self._end()

    def close(self) -> None:
        """Aborts an open transaction; without a broker, the next producer's `open` aborts it.

        Reports the queued records as failed.
        """
        report(self._queued, KafkaError._PURGE_QUEUE)
        self._queued = []
        if self._open and self._kafka.up and self._kafka.installed(self._id) is self:
            self._end()
        self._open = False

    def _check(self, *, opened: bool = True) -> None:
        if self._kafka.installed(self._id) is not self:
            raise KafkaRequestError(str(KafkaError(KafkaError._FENCED)), retriable=False)
        if not (self._kafka.up and self._kafka.writable):
            raise KafkaRequestError("broker unreachable", retriable=True)
        if self._open is not opened:
            raise KafkaRequestError(str(KafkaError(KafkaError._STATE)), retriable=True)

    def _check_outputs(self) -> None:
        if self._broken:
            raise KafkaRequestError(self._broken, retriable=True)
        for output in self._outputs:
            for code in self._refusals([output]):
                raise KafkaRequestError(str(KafkaError(code)), retriable=True)

    def _refusals(self, batch: list[Output]) -> list[int]:
        """Returns an error code for each output if the batch is refused, else an empty list."""
        topic = self._kafka.topic(batch[0].topic)
        if topic is None:
            return [KafkaError._UNKNOWN_TOPIC] * len(batch)
        if any(output.partition >= len(topic.logs) for output in batch):
            return [KafkaError._UNKNOWN_PARTITION] * len(batch)
        return topic.refusals(batch)

    def _write(self, output: Output) -> PartitionId:
        topic = self._kafka.topic(output.topic)
        assert topic is not None
        at = (output.topic, partition_of(output, topic, self._spread))
        headers = tuple(output.headers)
        self._kafka.append(*at, value=output.value, key=output.key, headers=headers)
        return at

    def _end(self) -> None:
        for group_metadata, _ in self._positions:
            group_metadata.group.pending.pop(self._id, None)
        self._outputs, self._queued, self._positions = [], [], []
        self._broken, self._open = "", False
