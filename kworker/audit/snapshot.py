"""The snapshot of an audit: reads the committed positions first, then the ends of the topics."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kworker.clients.group_positions import GroupAdmin, settled_offsets
from kworker.clock import now_ms
from kworker.config.client_properties import delay_group, table_group
from kworker.config.model import Config
from kworker.config.topics import delay_pattern, source_topics
from kworker.core.message import PartitionId
from kworker.core.offset_map import Settled
from kworker.errors import ConfigError, KworkerError

OPEN_TRANSACTION_S = 90.0
"""The wait for transactions that were open at the snapshot; kworker's end within 30 s."""
_ASK_EVERY_S = 0.2
_NOTHING = Settled(0)


@dataclass(frozen=True, slots=True)
class AuditTopics:
    """The topics that an audit reads, by role, such as source, results or dead letters."""

    sources: Sequence[str]
    results: Sequence[str]
    delays: Sequence[str]
    requeue: str
    dead: str
    dead_state: str

    @classmethod
    def of(cls, config: Config, admin: GroupAdmin) -> "AuditTopics":
        """Finds the topics on the brokers. Raises ConfigError if one is missing.

        Topics of delays that are no longer configured are included.
        """
        names = admin.topic_names()
        found = cls(
            source_topics(config, names),
            [config.delivery.results, *config.delivery.topics],
            [name for name in names if re.match(delay_pattern(config), name)],
            config.requeue_topic,
            config.dead_letter.topic,
            config.dead_state_topic,
        )
        if missing := [name for name in found.all if name not in names]:
            raise ConfigError(
                f"topics missing on the brokers: {', '.join(missing)}; create with: kworker"
                f" topics create --config {config.file}"
            )
        return found

    @property
    def written(self) -> list[str]:
        """The topics that the service writes, except the state topic of dead letters."""
        return [*self.results, *self.delays, self.requeue, self.dead]

    @property
    def all(self) -> list[str]:
        return [*self.sources, *self.written, self.dead_state]


@dataclass(frozen=True, slots=True)
class AuditSnapshot:
    """The positions of a service at one moment, and the offsets of its topics soon after.

    `settled` has the settled offsets of each partition that the service reads. `spans` has the
    offsets that the audit reads in each partition. The ends of `spans` were found after `settled`,
    so they lie beyond all outputs of the settled records. `table_positions` has the position of
    each table in each partition of the results topic.
    """

    topics: AuditTopics
    taken_ms: int
    settled: Mapping[PartitionId, Settled]
    spans: Mapping[PartitionId, range]
    table_positions: Mapping[str, Mapping[int, int]]

    def settled_of(self, topic: str) -> dict[int, Settled]:
        """Returns the settled offsets of a topic, by partition."""
        return {
            number: self.settled.get((name, number), _NOTHING)
            for name, number in self.spans
            if name == topic
        }

    def spans_of(self, topic: str) -> dict[int, range]:
        """Returns the offsets to read in each partition of a topic."""
        return {number: span for (name, number), span in self.spans.items() if name == topic}

    def is_complete(self, topics: Iterable[str]) -> bool:
        """Returns True if each partition of these topics still begins at offset 0."""
        return all(not span.start for topic in topics for span in self.spans_of(topic).values())


def take_snapshot(
    config: Config,
    admin: GroupAdmin,
    from_ms: int | None,
    wait: Callable[[float], object] = time.sleep,
) -> AuditSnapshot:
    """Reads the service's positions, and the offsets that each partition of its topics holds.

    With `from_ms`, the offsets of a source partition begin at its first record of that time or
    later. If a transaction is open in a topic that the service writes, waits for its end. Raises
    KworkerError if it stays open, ConfigError if a topic is missing, and Unreachable or
    AdminRequestError if Kafka does not answer.
    """
    topics = AuditTopics.of(config, admin)
    numbers = _partitions(admin, topics.all)
    taken_ms = now_ms()
    # The order is the promise: what a position settles was written before it was committed.
    settled = _settled(config, admin, topics, numbers)
    tables = _table_positions(config, admin, numbers)
    ends = _ends(admin, topics, numbers, wait)
    begins = admin.list_offsets(numbers, "earliest")
    if from_ms is not None:
        sources = [at for at in numbers if at[0] in topics.sources]
        for at, first in admin.list_offsets(sources, from_ms).items():
            begins[at] = ends[at] if first < 0 else max(first, begins[at])
    spans = {at: range(begins[at], max(begins[at], ends[at])) for at in numbers}
    return AuditSnapshot(topics, taken_ms, settled, spans, tables)


def _partitions(admin: GroupAdmin, topics: Sequence[str]) -> list[PartitionId]:
    found = admin.topics(topics)
    return [(name, number) for name in topics for number in range(found[name].partitions)]


def _settled(
    config: Config, admin: GroupAdmin, topics: AuditTopics, numbers: Sequence[PartitionId]
) -> dict[PartitionId, Settled]:
    """Returns the settled offsets in the topics that the workers and the delay process read."""
    own = {config.name: {*topics.sources, topics.requeue}}
    if topics.delays:
        own[delay_group(config)] = {*topics.delays}
    found: dict[PartitionId, Settled] = {}
    for group, read in own.items():
        found |= settled_offsets(admin, group, [at for at in numbers if at[0] in read])
    return found


def _table_positions(
    config: Config, admin: GroupAdmin, numbers: Sequence[PartitionId]
) -> dict[str, dict[int, int]]:
    results = [at for at in numbers if at[0] == config.delivery.results]
    tables = config.spark.tables if config.spark else []
    held = {t.name: admin.group_offsets(table_group(config, t.name), results) for t in tables}
    return {
        name: {at[1]: committed.position for at, committed in found.items()}
        for name, found in held.items()
    }


def _ends(
    admin: GroupAdmin,
    topics: AuditTopics,
    numbers: Sequence[PartitionId],
    wait: Callable[[float], object],
) -> dict[PartitionId, int]:
    """Returns the end of each partition for a reader of committed records.

    In topics that the service writes, an open transaction may hide records that were there before
    this call. Waits until none of them is hidden. Raises KworkerError if this takes too long.
    """
    written = {*topics.written, topics.dead_state}
    now = admin.list_offsets([at for at in numbers if at[0] in written], "latest")
    for _ in range(int(OPEN_TRANSACTION_S / _ASK_EVERY_S)):
        ends = admin.list_offsets(numbers, "latest", committed=True)
        hidden = sorted(at for at, end in now.items() if ends[at] < end)
        if not hidden:
            return ends
        wait(_ASK_EVERY_S)
    topic, number = hidden[0]
    raise KworkerError(
        f"audit: {topic}/{number} cannot be read to its end, because a transaction has been open"
        f" there for {OPEN_TRANSACTION_S:.0f} s; to see it: kworker transactions list"
    )
