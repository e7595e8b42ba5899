"""The broker of the in-memory Kafka: topics, what they hold, and the groups that read them."""

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection
from itertools import count

from confluent_kafka import KafkaError

from kworker.clients.errors import KafkaRequestError
from kworker.clients.memory.group import MemoryCommit, MemoryGroup
from kworker.core.message import Fields, Headers, PartitionId
from kworker.core.offset_map import TopicIdentity, ids_untold
from kworker.core.outcome import Output

_RECORD_BYTES = 70  # what a record costs beside its payload
_MAX_MESSAGE_BYTES = 1_048_588  # the broker's default for a topic


class MemoryLog:
    """The records of one partition in memory, by ascending offset; offsets may be missing."""

    def __init__(self) -> None:
        self.low = 0  # the first offset that may be read
        self.high = 0  # the next offset to write
        self.records: list[Fields] = []

    def read(self, position: int, most: int) -> list[Fields]:
        begin = self._index(position)
        return self.records[begin : begin + most]

    def trim(self, before: int) -> None:
        self.low = max(self.low, before)
        del self.records[: self._index(self.low)]

    def _index(self, position: int) -> int:
        return bisect_left(self.records, position, key=Fields.offset)


class MemoryTopic:
    """A topic in memory. A test may change its settings at any time, as an operator would."""

    def __init__(self, name: str, partitions: int, max_message_bytes: int) -> None:
        self.id = name  # changes when the topic is made again
        self.max_message_bytes = max_message_bytes
        self.compacted = False
        self.silent: set[int] = set()  # partitions that do not answer producers
        self.logs = [MemoryLog() for _ in range(partitions)]

    def refusals(self, batch: Collection[Output]) -> list[int]:
        """Returns an error code for each output if the batch is refused, else an empty list."""
        if any(size_of(output) > self.max_message_bytes for output in batch):
            return [KafkaError.MSG_SIZE_TOO_LARGE] * len(batch)
        invalid = [self.compacted and output.key is None for output in batch]
        if sum(invalid) > 1:  # of a single one, the broker does not report which it is
            other = KafkaError._INVALID_DIFFERENT_RECORD
            return [KafkaError.INVALID_RECORD if wrong else other for wrong in invalid]
        return [KafkaError.INVALID_RECORD] * len(batch) if any(invalid) else []


class MemoryKafka:
    """A broker in memory, with its topics, its groups and a history of their commits.

    A test may set four switches. While `up` is False, no client can reach the broker. While
    `writable` is False, the broker does not answer producers. While `coordinated` is False, the
    broker does not answer requests about groups. While `tells_ids` is False, it tells no topic ids.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._topics: dict[str, MemoryTopic] = {}
        self._groups: dict[str, MemoryGroup] = {}
        self._names = count(1)
        self._transactors: dict[str, object] = {}
        self.up = True
        self.tells_ids = True  # of topics
        self.writable = True
        self.coordinated = True

    def create(
        self, topic: str, partitions: int = 1, *, max_message_bytes: int = _MAX_MESSAGE_BYTES
    ) -> None:
        """Creates a topic, or adds partitions to an existing topic.

        Begins a rebalance of each group that reads the topic.
        """
        if topic not in self._topics:
            self._topics[topic] = MemoryTopic(f"topic-{next(self._names):04}", 0, max_message_bytes)
        made = self._topics[topic]
        made.logs += [MemoryLog() for _ in range(partitions - len(made.logs))]
        self._rebalance_readers(topic)

    def delete(self, topic: str) -> None:
        """Deletes a topic and its records. Begins a rebalance of each group that reads it."""
        self._rebalance_readers(topic)
        del self._topics[topic]

    def topic(self, name: str) -> MemoryTopic | None:
        return self._topics.get(name)

    def identities(self, topics: Collection[str], timeout_s: float) -> dict[str, TopicIdentity]:  # noqa: ARG002 - never waits
        """Returns the cluster and id of each topic that exists.

        Raises KafkaRequestError if the broker is down, or if it does not tell the ids of topics.
        """
        if not self.up:
            raise KafkaRequestError("broker unreachable", retriable=True)
        here = [name for name in topics if name in self._topics]
        if here and not self.tells_ids:
            raise KafkaRequestError(ids_untold(sorted(here)), retriable=True)
        return {name: TopicIdentity("memory", self._topics[name].id) for name in here}

    def log(self, at: PartitionId) -> MemoryLog:
        """Returns a partition's log. Raises KeyError or IndexError for an unknown partition."""
        return self._topics[at[0]].logs[at[1]]

    def append(
        self,
        topic: str,
        partition: int = 0,
        *,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> int:
        """Writes a record, as any producer would; returns its offset."""
        log = self.log((topic, partition))
        stamp = int(self._now_s() * 1000) if timestamp is None else timestamp
        offset, log.high = log.high, log.high + 1
        log.records.append(Fields((topic, partition, offset), stamp, key, value, headers))
        return offset

    def skip(self, topic: str, partition: int = 0, offsets: int = 1) -> None:
        """Uses up offsets that get no record, as transaction markers do."""
        self.log((topic, partition)).high += offsets

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Deletes the records below an offset, as retention does."""
        self.log((topic, partition)).trim(before)

    def records(self, topic: str) -> list[Fields]:
        """Returns a topic's records, partition by partition."""
        return [record for log in self._topics[topic].logs for record in log.records]

    def group(self, name: str) -> MemoryGroup:
        if name not in self._groups:
            self._groups[name] = MemoryGroup(name, self._partitions)
        return self._groups[name]

    def committed(self, group: str) -> dict[PartitionId, int]:
        """Returns the group's committed positions."""
        return {at: held.position for at, held in self.group(group).committed.items()}

    def history(self, group: str) -> list[MemoryCommit]:
        """Returns every commit that the group accepted, in order."""
        return list(self.group(group).history)

    def new_name(self) -> str:
        """Returns an unused name for a new member, as a coordinator does."""
        return f"member-{next(self._names):04}"

    def install(self, transactional_id: str, producer: object) -> None:
        """Makes this producer the only one with this transactional id.

        Fences the former producer with this id, and aborts its transaction.
        """
        self._transactors[transactional_id] = producer
        for group in self._groups.values():
            group.pending.pop(transactional_id, None)

    def expire(self, transactional_id: str) -> None:
        """Fences the producer with this id, and aborts its open transaction.

        A broker does both by itself when a transaction has been open for too long.
        """
        self.install(transactional_id, None)

    def installed(self, transactional_id: str) -> object:
        """Returns the one producer that may write under this id."""
        return self._transactors.get(transactional_id)

    def missing(self, topics: list[str]) -> list[str]:
        """Returns those names and regular expressions in `topics` that match no existing topic."""
        return [asked for asked in topics if not any(_matches(n, [asked]) for n in self._topics)]

    def _rebalance_readers(self, topic: str) -> None:
        for group in self._groups.values():
            if group.reads(topic):
                group.rebalance()

    def _partitions(self, topics: list[str]) -> list[PartitionId]:
        names = [name for name in sorted(self._topics) if _matches(name, topics)]
        return [(name, i) for name in names for i in range(len(self._topics[name].logs))]


def size_of(output: Output) -> int:
    """Returns the approximate size of a record in bytes, as a broker would measure it."""
    headers = sum(len(name.encode()) + len(value or b"") for name, value in output.headers)
    return len(output.key or b"") + len(output.value or b"") + headers + _RECORD_BYTES


def _matches(name: str, topics: list[str]) -> bool:
    return any(re.search(t, name) if t.startswith("^") else t == name for t in topics)
