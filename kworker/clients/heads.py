"""The first unsettled record of each partition, read without joining a group."""

import time
from collections.abc import Mapping
from typing import Any, cast

from confluent_kafka import Consumer, TopicPartition

from kworker.clients.admin_connection import SILENT
from kworker.clients.events import ConsumerEvent, event_of
from kworker.core.message import PartitionId, RawMessage
from kworker.core.offset_map import Settled

DEADLINE_S = 5.0
_BATCH = 500
_POLL_S = 0.1
_OWN = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",  # expired records cannot be read
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 10,
    # One record of each partition is enough. The queue's limit is that of a fetch, too, unless the
    # user's message.max.bytes is higher: a client with a lower fetch.max.bytes would be refused.
    "fetch.message.max.bytes": 1 << 18,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1 << 12,
}


class HeadReader:
    """Reads the first unsettled record of each of many partitions. Used by one thread."""

    def __init__(self, properties: Mapping[str, Any], group: str) -> None:
        """`group` is a group id, which the client needs although it never joins the group."""
        own = {**_OWN, "group.id": group, "group.protocol": "classic"}
        self._consumer = Consumer({**properties, **own}, logger=SILENT)

    def heads(self, settled: Mapping[PartitionId, Settled]) -> dict[PartitionId, RawMessage | None]:
        """Returns, for each partition, its first record that is not settled.

        The value is None if the partition ends without such a record. A partition is left out if it
        cannot be read, or sends nothing in time. Blocks for `DEADLINE_S` at most.
        """
        found: dict[PartitionId, RawMessage | None] = {}
        places = [TopicPartition(*at, each.position) for at, each in settled.items()]
        self._consumer.assign(places)
        self._consumer.resume(places)  # an assignment keeps pauses
        left = set(settled)
        deadline = time.monotonic() + DEADLINE_S
        while left and time.monotonic() < deadline:
            for raw in cast(list[RawMessage], self._consumer.consume(_BATCH, _POLL_S)):
                at = (raw.topic(), raw.partition())
                if at in left and _is_last(raw, settled[at]):
                    left.discard(at)
                    self._consumer.pause([TopicPartition(*at)])
                    if _is_readable(raw):
                        found[at] = raw if raw.error() is None else None
        return found

    def close(self) -> None:
        self._consumer.close()


def _is_last(raw: RawMessage, settled: Settled) -> bool:
    """Returns True if a partition need not be read beyond this record or event."""
    if raw.error() is None:
        return not settled.has(raw.offset())
    return event_of(raw) is not ConsumerEvent.TRANSIENT


def _is_readable(raw: RawMessage) -> bool:
    return raw.error() is None or event_of(raw) is ConsumerEvent.PARTITION_EOF
