"""Reads the records of topics for commands, without joining a group."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from kworker.clients.admin_connection import SILENT
from kworker.clients.events import ConsumerEvent, event_of
from kworker.core.message import RawMessage
from kworker.errors import KworkerError, Unreachable

_BATCH = 500
_FOLLOW_POLL_S = 0.5  # Ctrl-C acts between two polls
_OWN = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    # Records that retention deletes meanwhile are passed over.
    "auto.offset.reset": "earliest",
    # A partition begins when the long wait for more of the one before is over.
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 16384,
    "fetch.queue.backoff.ms": 10,
}


class TopicReader:
    """A read_committed consumer of given partitions. Used by one thread."""

    def __init__(self, properties: Mapping[str, Any], group: str, *, timeout_s: float) -> None:
        """`group` is a group id, which the client needs although it never joins the group."""
        self._timeout_s = timeout_s
        own = {**_OWN, "group.id": group, "group.protocol": "classic"}
        self._consumer = Consumer({**properties, **own}, logger=SILENT)

    def records(self, topic: str, spans: Mapping[int, range]) -> Iterator[RawMessage]:
        """Yields a topic's records with the offsets in `spans`, one partition after the other.

        Raises Unreachable when nothing comes for `timeout_s`.
        """
        for number, span in sorted(spans.items()):
            if span:
                yield from self._partition(TopicPartition(topic, number, span.start), span.stop)

    def follow(self, topic: str, starts: Mapping[int, int]) -> Iterator[RawMessage]:
        """Yields the records of a topic as they come; never ends.

        `starts` has the first offset to read in each partition.
        """
        at = [TopicPartition(topic, number, offset) for number, offset in starts.items()]
        self._consumer.assign(at)
        while True:
            raw = cast(RawMessage | None, self._consumer.poll(_FOLLOW_POLL_S))
            if raw is not None and _is_wanted(raw) and not _is_end(raw):
                yield raw

    def _partition(self, at: TopicPartition, stop: int) -> Iterator[RawMessage]:
        self._consumer.assign([at])
        while True:
            for raw in self._batch(at):
                if _is_end(raw) or raw.offset() >= stop:
                    return
                yield raw
                if raw.offset() == stop - 1:
                    return

    def _batch(self, at: TopicPartition) -> list[RawMessage]:
        """Returns the next records of a partition. Raises Unreachable if nothing comes in time.

        At the end of the partition, the last item is an event instead of a record.
        """
        deadline = time.monotonic() + self._timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            if (first := self._consumer.poll(left_s)) is not None:
                found = [first, *self._consumer.consume(_BATCH, 0)]
                if wanted := [raw for raw in cast(list[RawMessage], found) if _is_wanted(raw)]:
                    return wanted
        raise Unreachable(
            f"Kafka has sent nothing of {at.topic}/{at.partition} for {self._timeout_s:g} s"
        )

    def close(self) -> None:
        self._consumer.close()


def _is_end(raw: RawMessage) -> bool:
    return raw.error() is not None and raw.error().code() == KafkaError._PARTITION_EOF


def _is_wanted(raw: RawMessage) -> bool:
    """Returns True for a record or the end of a partition.

    Returns False for an error that passes by itself. Raises KworkerError for any other error.
    """
    if raw.error() is None or _is_end(raw):
        return True
    if event_of(raw) is ConsumerEvent.TRANSIENT:
        return False
    raise KworkerError(f"cannot read {raw.topic()}/{raw.partition()}: {raw.error().str()}")
