"""The search of `kworker reject`: finds a record that still waits, runs or is to be retried."""

import re
from collections.abc import Iterator, Mapping
from typing import Protocol

from kworker.clients.group_positions import GroupAdmin, settled_offsets
from kworker.config.client_properties import delay_group
from kworker.config.model import Config
from kworker.config.topics import delay_pattern, source_topics
from kworker.core.headers import SOURCE, Forged, Source, SourcePosition
from kworker.core.message import RawMessage
from kworker.core.offset_map import Settled
from kworker.errors import KworkerError, UsageError


class RejectReader(Protocol):
    """The method of `TopicReader` that `RecordSearch` uses."""

    def records(self, topic: str, spans: Mapping[int, range]) -> Iterator[RawMessage]: ...


class RecordSearch:
    """Finds a record of a source topic by partition and offset. Every call may block.

    While a record waits for a retry, it is settled in its source topic, and its copy is in a delay
    topic or in the requeue topic. The search finds the copy, so the record can still be rejected.
    """

    def __init__(self, config: Config, admin: GroupAdmin, reader: RejectReader) -> None:
        self._config = config
        self._admin = admin
        self._reader = reader
        self._names = admin.topic_names()

    def find(self, place: SourcePosition) -> Source:
        """Returns the record's source position, with its timestamp.

        Raises UsageError if the service does not read this partition; KworkerError if the record
        does not exist, or if it is settled and no retry of it waits; Unreachable or
        AdminRequestError if Kafka does not answer.
        """
        topic, number, offset = place
        at = (topic, number)
        record = f"{topic}:{number}:{offset}"
        self._check_partition(topic, number)
        low = self._admin.list_offsets([at], "earliest")[at]
        high = self._admin.list_offsets([at], "latest", committed=True)[at]
        if offset >= high:
            raise KworkerError(
                f"reject: {record} does not exist: the next record of {topic}:{number} gets offset"
                f" {high:,}; check the offset"
            )
        settled = settled_offsets(self._admin, self._config.name, [at]).get(at)
        if offset >= low and not (settled and settled.has(offset)):
            if source := self._read(place):
                return source
            raise KworkerError(
                f"reject: {record} does not exist: compaction removed it, or the offset is a"
                " transaction marker"
            )
        if source := self._find_retry(place):
            return source
        if offset < low:
            raise KworkerError(
                f"reject: {record} does not exist: {topic}:{number} begins at {low:,}; Kafka has"
                " deleted all earlier records, so there is nothing to reject"
            )
        raise KworkerError(
            f"reject: {record} is done already, and no retry of it waits; if its handler failed, it"
            " is a dead letter: kworker dead list"
        )

    def _check_partition(self, topic: str, number: int) -> None:
        sources = source_topics(self._config, self._names)
        if topic not in sources:
            raise UsageError(
                f"reject: {topic} is no source topic of {self._config.name}; its source topics"
                f" are: {', '.join(sources)}"
            )
        if (found := self._admin.topics([topic]).get(topic)) is None:
            raise UsageError(
                f"reject: {topic} does not exist on the brokers, so it has no record to reject;"
                " check source.topics"
            )
        if number >= found.partitions:
            raise UsageError(
                f"reject: {topic} has no partition {number}; its last is {found.partitions - 1}"
            )

    def _read(self, place: SourcePosition) -> Source | None:
        topic, number, offset = place
        for raw in self._reader.records(topic, {number: range(offset, offset + 1)}):
            return Source(topic, number, offset, raw.timestamp()[1])
        return None

    def _find_retry(self, place: SourcePosition) -> Source | None:
        """Returns the source of the record's unsettled copy in a delay or requeue topic, if any."""
        delays = [name for name in self._names if re.match(delay_pattern(self._config), name)]
        # In the order in which a record passes through them, as it may do meanwhile.
        for topic in [*delays, self._config.requeue_topic]:
            group = self._config.name if topic not in delays else delay_group(self._config)
            for source in self._unsettled(topic, group):
                if source.place == place:
                    return source
        return None

    def _unsettled(self, topic: str, group: str) -> Iterator[Source]:
        if (found := self._admin.topics([topic]).get(topic)) is None:
            return
        partitions = [(topic, number) for number in range(found.partitions)]
        low = self._admin.list_offsets(partitions, "earliest")
        high = self._admin.list_offsets(partitions, "latest", committed=True)
        begun = {at: Settled(offset) for at, offset in low.items()}
        settled = begun | settled_offsets(self._admin, group, partitions)
        spans = {at[1]: range(max(low[at], settled[at].position), high[at]) for at in partitions}
        for raw in self._reader.records(topic, spans):
            if not settled[topic, raw.partition()].has(raw.offset()):
                yield from _sources(raw)


def _sources(raw: RawMessage) -> Iterator[Source]:
    """Yields the source position from each valid header `kworker-source` of a record."""
    try:
        headers = raw.headers() or ()
    except SystemError:  # a header name that is not UTF-8: none that kworker wrote
        return
    for name, value in headers:
        if name == SOURCE and value is not None:
            try:
                yield Source.parse(value)
            except Forged:
                continue
