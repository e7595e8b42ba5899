"""The transactional producer of Kafka in memory."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from confluent_kafka import KafkaError

from kworker.clients.kafka import At, Refused
from kworker.clients.memory import partition_of, size_of
from kworker.clients.memory_broker import MemoryKafka
from kworker.clients.memory_group import Standing, fits
from kworker.core.offset_map import Committed
from kworker.core.outcome import Output


class MemoryTransactor:
    """`KafkaTransactor` without a broker: `commit` writes all that was produced, or nothing.

    Of an open transaction there is nothing to read, so every consumer is a read_committed
    one. As on a broker, a marker uses up an offset of each partition that was written.
    """

    def __init__(
        self,
        kafka: MemoryKafka,
        properties: Mapping[str, Any],  # noqa: ARG002 - as the real one
        transactional_id: str,
        timeout_s: float,  # noqa: ARG002 - never waits
    ) -> None:
        self._kafka = kafka
        self._id = transactional_id
        self._open = False
        self._outputs: list[Output] = []
        self._positions: list[tuple[Standing, Mapping[At, Committed]]] = []
        self._spread = count()

    def open(self) -> None:
        """Fences and aborts what a predecessor left. Raises Refused."""
        if not self._kafka.up:
            raise Refused("broker unreachable", passing=True)
        self._kafka.install(self._id, self)

    def begin(self) -> None:
        """Raises Refused."""
        self._check(opened=False)
        self._open = True

    def produce(self, output: Output) -> None:
        """Adds a record to the transaction. Raises Refused."""
        self._check()
        self._outputs.append(output)

    def send_positions(self, positions: Mapping[At, Committed], standing: Standing) -> None:
        """Adds positions of a group to the transaction. Raises Refused."""
        self._check()
        member = standing.member
        error = standing.group.refusal(member)
        if error is None and standing.generation != standing.group.generation:
            error = KafkaError(KafkaError.ILLEGAL_GENERATION)
        if error is None and not all(map(fits, positions.values())):
            error = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE)
        if error is not None:
            raise Refused(str(error), passing=True)
        self._positions.append((standing, dict(positions)))
        standing.group.pending[self._id] = positions

    def commit(self) -> None:
        """Makes all of it visible and durable. Raises Refused."""
        self._check()
        self._check_outputs()
        written = {self._write(output) for output in self._outputs}
        for at in written:
            self._kafka.skip(*at)
        for standing, positions in self._positions:
            standing.group.accept(standing.member.name, standing.generation, positions)
        self._end()

    def abort(self) -> None:
        """As if the transaction had never been. Raises Refused."""
        self._check()
        self._end()

    def close(self) -> None:
        """Gives up an open transaction; what cannot be told now, a successor's `open` tells."""
        if self._open and self._kafka.up and self._kafka.installed(self._id) is self:
            self._end()
        self._open = False

    def _check(self, *, opened: bool = True) -> None:
        if self._kafka.installed(self._id) is not self:
            raise Refused(str(KafkaError(KafkaError._FENCED)), passing=False)
        if not (self._kafka.up and self._kafka.writable):
            raise Refused("broker unreachable", passing=True)
        if self._open is not opened:
            raise Refused(str(KafkaError(KafkaError._STATE)), passing=True)

    def _check_outputs(self) -> None:
        for output in self._outputs:
            topic = self._kafka.topic(output.topic)
            if topic is None:
                raise Refused(str(KafkaError(KafkaError._UNKNOWN_TOPIC)), passing=True)
            if output.partition >= len(topic.logs):
                raise Refused(str(KafkaError(KafkaError._UNKNOWN_PARTITION)), passing=True)
            if size_of(output) > topic.max_message_bytes:
                raise Refused(str(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)), passing=True)

    def _write(self, output: Output) -> At:
        topic = self._kafka.topic(output.topic)
        assert topic is not None
        at = (output.topic, partition_of(output, topic, self._spread))
        headers = tuple(output.headers)
        self._kafka.append(*at, value=output.value, key=output.key, headers=headers)
        return at

    def _end(self) -> None:
        for standing, _ in self._positions:
            standing.group.pending.pop(self._id, None)
        self._outputs, self._positions, self._open = [], [], False
