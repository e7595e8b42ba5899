"""The lag of every group of a service, as the brokers report it; the service need not run."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kworker.clients.group_positions import (
    GroupAdmin,
    PositionsAdmin,
    group_positions,
    offset_spans,
)
from kworker.config.client_properties import delay_group, table_group
from kworker.config.model import Config
from kworker.config.topics import delay_ms, delay_pattern, source_topics
from kworker.core.duration import format_duration
from kworker.core.message import PartitionId, RawMessage
from kworker.core.offset_map import Settled
from kworker.core.positions import GroupPosition
from kworker.delay.routes import DelayedRecord

Heads = Mapping[PartitionId, RawMessage | None]
"""The result of `HeadReader.heads`."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition.

    `age_s` is the age of the oldest unfinished record: 0.0 if there is none, None if it is unknown.
    """

    position: GroupPosition
    age_s: float | None


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The lag of a group in one topic. `partitions` is empty if the topic does not exist."""

    topic: str
    group: str
    partitions: Sequence[PartitionLag]

    @property
    def exists(self) -> bool:
        return bool(self.partitions)

    @property
    def records(self) -> int | None:
        """The number of offsets from the positions to the ends; None if the topic is missing."""
        return sum(each.position.behind for each in self.partitions) if self.exists else None

    @property
    def unfinished(self) -> int | None:
        """The number of offsets that the group has not finished; None if the topic is missing."""
        return sum(each.position.unfinished for each in self.partitions) if self.exists else None

    @property
    def age_s(self) -> float | None:
        """The greatest known `age_s` of the partitions.

        None if no age is known, or if all known ages are 0 and another is unknown.
        """
        return _oldest(each.age_s for each in self.partitions)


@dataclass(frozen=True, slots=True)
class DelayLag:
    """The records in the topic of one delay, and the time (ms since 1970) when the next is due.

    `waiting` is None if the topic does not exist.
    """

    delay: str
    topic: str
    waiting: int | None
    next_due_ms: int | None


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of the workers' group by topic, the delay topics, and the lag of each table."""

    name: str
    topics: Sequence[TopicLag]
    delays: Sequence[DelayLag]
    tables: Mapping[str, TopicLag]

    @property
    def records(self) -> int | None:
        """The lag of the workers' group; None if one of its topics does not exist."""
        return _sum(each.records for each in self.topics)

    @property
    def unfinished(self) -> int | None:
        return _sum(each.unfinished for each in self.topics)

    @property
    def age_s(self) -> float | None:
        return _oldest(each.age_s for each in self.topics)

    @property
    def missing(self) -> list[str]:
        """The topics of the service that do not exist."""
        lags = [*self.topics, *self.tables.values()]
        found = [each.topic for each in lags if not each.exists]
        found += [each.topic for each in self.delays if each.waiting is None]
        return list(dict.fromkeys(found))


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Returns the sum; None if one of the numbers is unknown."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _oldest(ages_s: Iterable[float | None]) -> float | None:
    """Returns the greatest known age.

    Returns None if no age is known, or if all known ages are 0 and another is unknown.
    """
    ages = list(ages_s)
    known = max((age_s for age_s in ages if age_s is not None), default=0.0)
    return known if known or (ages and None not in ages) else None


def survey(
    config: Config,
    admin: GroupAdmin,
    read_heads: Callable[[Mapping[PartitionId, Settled]], Heads],
    now_ms: int,
) -> LagReport:
    """Reads the lag of every group of the service. Raises Unreachable if no broker answers.

    `read_heads`, which is `HeadReader.heads`, reads the first unfinished record of each partition.
    A partition counts only up to its first open transaction, because the groups do not read beyond
    that. A position is the one that is committed now, even if an open transaction may change it.
    """
    existing = admin.topic_names()
    read = [*source_topics(config, existing), config.requeue_topic]
    waiting = _delay_topics(config, existing)
    tables = [] if config.spark is None else [table.name for table in config.spark.tables]
    results = [config.delivery.results] if tables else []
    known = admin.topics([*read, *waiting, *results])
    partitions = [(name, number) for name in known for number in range(known[name].partitions)]
    groups = GroupSurvey(admin, read_heads, offset_spans(admin, partitions, committed=True), now_ms)
    return LagReport(
        config.name,
        groups.topics(config.name, read),
        groups.delays(config, waiting),
        {name: lag for name in tables for lag in groups.topics(table_group(config, name), results)},
    )


def _delay_topics(config: Config, existing: Iterable[str]) -> list[str]:
    """Returns the delay topics, configured or not, the shortest delay first."""
    pattern = re.compile(delay_pattern(config))
    configured = [config.retry_topic(delay) for delay in config.retry.delays]
    found = {*configured, *(name for name in existing if pattern.match(name))}
    return sorted(found, key=lambda topic: delay_ms(config, topic))


class GroupSurvey:
    """Reads the lag of groups; the caller gives it the offsets that each partition holds."""

    def __init__(
        self,
        admin: PositionsAdmin,
        read_heads: Callable[[Mapping[PartitionId, Settled]], Heads],
        held: Mapping[PartitionId, range],
        now_ms: int,
    ) -> None:
        self._admin = admin
        self._read_heads = read_heads
        self._held = held
        self._now_ms = now_ms

    def topics(self, group: str, topics: Sequence[str]) -> list[TopicLag]:
        """Returns the lag of a group in each of these topics."""
        rows, heads = self._read(group, topics)
        return [
            TopicLag(
                topic,
                group,
                [PartitionLag(row, self._age_s(row, heads)) for row in rows if row.topic == topic],
            )
            for topic in topics
        ]

    def delays(self, config: Config, topics: Sequence[str]) -> list[DelayLag]:
        """Returns how many records wait in each of these delay topics, and the next due time."""
        rows, heads = self._read(delay_group(config), topics)
        return [self._delay(delay_ms(config, topic), topic, rows, heads) for topic in topics]

    def _read(self, group: str, topics: Sequence[str]) -> tuple[list[GroupPosition], Heads]:
        held = {at: span for at, span in self._held.items() if at[0] in topics}
        if not held:
            return [], {}
        rows = group_positions(self._admin, group, held, stable=False)
        return rows, self._read_heads({row.at: _passed(row) for row in rows if row.unfinished})

    def _age_s(self, row: GroupPosition, heads: Heads) -> float | None:
        if not row.unfinished:
            return 0.0
        if row.at not in heads:
            return None
        if (head := heads[row.at]) is None:  # what is there has no records, only markers
            return 0.0
        written_ms = head.timestamp()[1]
        return None if written_ms < 0 else max(0, self._now_ms - written_ms) / 1000

    def _delay(self, ms: int, topic: str, rows: Sequence[GroupPosition], heads: Heads) -> DelayLag:
        own = [row for row in rows if row.topic == topic]
        waiting = sum(row.unfinished for row in own) if own else None
        first = (raw for row in own if (raw := heads.get(row.at)) is not None)
        due = (DelayedRecord(raw, ms, self._now_ms).leaves_ms for raw in first)
        return DelayLag(format_duration(ms / 1000), topic, waiting, min(due, default=None))


def _passed(row: GroupPosition) -> Settled:
    """Returns the offsets that the group will not run: settled ones, and those deleted by Kafka."""
    settled = row.settled or Settled(0)
    return settled._replace(position=max(settled.position, row.low))
