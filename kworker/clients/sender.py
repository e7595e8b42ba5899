"""A producer for the records of `kworker send`; notes their offsets in each partition."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from kworker.clients.admin_connection import SILENT
from kworker.clients.errors import QueueFull
from kworker.clients.producer import hand_over
from kworker.core.message import PartitionId
from kworker.core.outcome import Output
from kworker.errors import ConfigError

_POLL_S = 0.1
_SHOWN_MAX = 10  # refused records that are kept


@dataclass(slots=True)
class SentSpan:
    """The records that a partition took: their number, and their first and last offset."""

    count: int
    first: int
    last: int

    def add(self, offset: int) -> None:
        self.count += 1
        self.first, self.last = min(self.first, offset), max(self.last, offset)


class RefusedRecord(NamedTuple):
    """A record that is not in Kafka, by its number in the input, and the reason."""

    number: int
    reason: str


class RecordSender:
    """Sends records and waits for their acknowledgements. Used by one thread."""

    def __init__(self, properties: Mapping[str, Any], *, timeout_s: float) -> None:
        """A record that is not acknowledged within `timeout_s` is counted as refused.

        Raises ConfigError for properties that the client refuses.
        """
        self._timeout_s = timeout_s
        own = {"delivery.report.only.error": False, "message.timeout.ms": int(timeout_s * 1000)}
        left = {k: v for k, v in properties.items() if k != "delivery.timeout.ms"}  # its alias
        try:
            self._producer = Producer({**left, **own}, logger=SILENT)
        except KafkaException as error:
            raise ConfigError(f"kafka: {error.args[0].str()}") from None
        self.spans: dict[PartitionId, SentSpan] = {}
        self.acknowledged = 0
        self.refused_count = 0
        self.refused: list[RefusedRecord] = []  # the first few

    def send(self, output: Output, number: int) -> None:
        """Queues a record; waits while the client's queue is full."""

        def report(error: Any, message: Any) -> None:
            if error is None:
                self._note(message.topic(), message.partition(), message.offset())
            else:
                self._refuse(number, error)

        while True:
            try:
                hand_over(self._producer.produce, output, report)
            except QueueFull:
                self._producer.poll(_POLL_S)
            except KafkaException as error:
                self._refuse(number, error.args[0])
                return
            else:
                self._producer.poll(0)
                return

    def wait_until(self, due_s: float, ends: Callable[[], bool]) -> None:
        """Serves delivery reports until `due_s` (monotonic clock), or until `ends` returns True."""
        while (left := due_s - time.monotonic()) > 0 and not ends():
            self._producer.poll(min(left, _POLL_S))

    def finish(self) -> None:
        """Waits until each record is acknowledged or refused."""
        while len(self._producer):
            self._producer.flush(_POLL_S)

    def _note(self, topic: str, partition: int, offset: int) -> None:
        self.acknowledged += 1
        at = topic, partition
        if at in self.spans:
            self.spans[at].add(offset)
        else:
            self.spans[at] = SentSpan(1, offset, offset)

    def _refuse(self, number: int, error: KafkaError) -> None:
        self.refused_count += 1
        if len(self.refused) < _SHOWN_MAX:
            self.refused.append(RefusedRecord(number, error.str()))
