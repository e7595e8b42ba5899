"""A consumer of stretches, on the twin and on a real broker: no member, and never disturbed."""

from typing import Any

import pytest

from kworker.clients.errors import KafkaRequestError
from kworker.core.message import PartitionId, RawMessage
from kworker.core.offset_map import Committed
from kworker.core.times import TimeRange
from kworker.replay.ranges import OffsetRanges, RangeConsumer
from tests.support.kafka_and_twin import Cluster
from tests.support.member import Member, for_a_while, new_group, until
from tests.support.waiting import eventually

STAMP = 1_700_000_000_000


class Reader:
    """Reads a course as a poll loop does: assigned by the first `poll`, resumed after it."""

    def __init__(self, cluster: Cluster, course: OffsetRanges, group: str = "") -> None:
        self.course = course
        self.values: list[bytes | None] = []
        self.committed_with: list[str | None] = []
        self._wait_s = cluster.wait_s
        self.client: Any = cluster.consumer(self, group or new_group())
        self.consumer = RangeConsumer(self.client, self, course)
        self._fresh: list[PartitionId] = []

    def assigned(self, partitions: list[PartitionId]) -> None:
        held = self.consumer.positions(partitions, 1.0)
        self.consumer.assign({at: each and each.position for at, each in held.items()})
        self._fresh = partitions

    def revoked(self, partitions: list[PartitionId]) -> None:
        raise AssertionError(f"nobody may revoke {partitions}")

    def lost(self, partitions: list[PartitionId]) -> None:
        raise AssertionError(f"nothing can be lost: {partitions}")

    def committed(self, error: str | None) -> None:
        self.committed_with.append(error)

    def turn(self) -> list[RawMessage]:
        batch = self.consumer.poll(100, self._wait_s)
        fresh, self._fresh = self._fresh, []
        self.consumer.resume(fresh)
        self.values += [raw.value() for raw in batch if raw.error() is None]
        return batch

    def read(self) -> None:
        def over() -> bool:
            self.turn()
            return self.course.finished

        eventually(over, what="the course is over")


def written(kafka: Cluster, *minutes: int, partition: int = 0, topic: str = "") -> str:
    """Records `partition-offset`, stamped so many minutes after STAMP."""
    topic = topic or kafka.create(partitions=2)
    for offset, minute in enumerate(minutes):
        value = b"%d-%d" % (partition, offset)
        kafka.write(topic, partition, value=value, timestamp=STAMP + minute * 60_000)
    return topic


def test_the_reader_reads_its_ranges_within_the_time_window(kafka: Cluster) -> None:
    topic = written(kafka, 0, 1, 5, 2, 3)
    written(kafka, 1, 1, 1, partition=1, topic=topic)
    spans = {(topic, 0): range(1, 4), (topic, 1): range(2)}
    reader = Reader(kafka, OffsetRanges(spans, TimeRange(STAMP + 60_000, STAMP + 180_000)))
    reader.read()
    assert sorted(reader.values) == [b"0-1", b"0-3", b"1-0", b"1-1"]


def test_a_range_read_to_its_end_brings_no_more_records(kafka: Cluster) -> None:
    """Its client fetches no more, though the poll loop, which knows of no ends, resumes all."""
    topic = written(kafka, 0, 0, 0)
    at = (topic, 0)
    reader = Reader(kafka, OffsetRanges({at: range(2)}, TimeRange()))
    reader.read()
    written(kafka, 0, 0, topic=topic)
    reader.consumer.pause([at])
    reader.consumer.resume([at])
    for _ in range(8):
        assert reader.client.poll(100, kafka.wait_s) == []
    assert reader.values == [b"0-0", b"0-1"]


def test_a_range_with_deleted_records_ends_at_the_partitions_end(
    kafka: Cluster,
) -> None:
    """The group may have settled more than the topic holds: one deleted and created again."""
    topic = written(kafka, 0, 0)
    reader = Reader(kafka, OffsetRanges({(topic, 0): range(50)}, TimeRange()))
    reader.read()
    assert reader.values == [b"0-0", b"0-1"]


def test_a_replay_may_commit_in_a_group_without_members(kafka: Cluster) -> None:
    """They show how far it is; nobody else is in its group."""
    topic = written(kafka, 0, 0, 0)
    at = (topic, 0)
    reader = Reader(kafka, OffsetRanges({at: range(3)}, TimeRange()))
    reader.read()
    reader.consumer.commit({at: Committed(2)})

    def heard() -> bool:
        reader.turn()
        return bool(reader.committed_with)

    eventually(heard, what="the answer to the commit")
    assert reader.committed_with == [None]
    assert reader.client.positions([at], 10.0) == {at: Committed(2)}
    reader.consumer.commit_now({at: Committed(3)})
    assert reader.client.positions([at], 10.0) == {at: Committed(3)}


def test_a_replay_cannot_commit_in_a_group_with_members(kafka: Cluster) -> None:
    """So a replay could not move the service's positions even if it had its group's name."""
    topic = written(kafka, 0, 0)
    at, group = (topic, 0), new_group()
    member = Member(kafka, [topic], group=group)
    until(lambda: member.owned, member)
    reader = Reader(kafka, OffsetRanges({at: range(2)}, TimeRange()), group)
    reader.read()
    with pytest.raises(KafkaRequestError):
        reader.consumer.commit_now({at: Committed(1)})
    for_a_while(member)
    assert member.heard("revoked") == []
