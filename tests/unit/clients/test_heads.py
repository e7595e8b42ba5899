"""The first unsettled record of many partitions, by which a lag gets its age."""

from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest
from confluent_kafka import Producer

from kworker.clients import heads
from kworker.clients.heads import HeadReader
from kworker.core.message import PartitionId
from kworker.core.offset_map import Settled
from tests.support.mock_cluster import MockCluster

FIRST_MS = 1_790_000_000_000  # of offset 0; each next one is a second later


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    cluster = MockCluster()
    yield cluster
    cluster.close()


def fill(cluster: MockCluster, topic: str, counts: Mapping[int, int]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for partition, count in counts.items():
        for number in range(count):
            stamp = FIRST_MS + 1000 * number
            producer.produce(topic, b"v" * 500, partition=partition, timestamp=stamp)
    assert producer.flush(30) == 0


def found(
    cluster: MockCluster, *asked: Mapping[PartitionId, Settled]
) -> list[dict[PartitionId, int | None]]:
    """The offset of each head, asked of one reader."""
    with closing(HeadReader({"bootstrap.servers": cluster.bootstrap}, "nobody")) as reader:
        answers = [reader.heads(each) for each in asked]
    return [
        {at: raw if raw is None else raw.offset() for at, raw in answer.items()}
        for answer in answers
    ]


def test_each_partition_has_the_first_record_that_is_not_settled(cluster: MockCluster) -> None:
    """The offset map may say more than the position, when the record there has expired."""
    fill(cluster, "orders", {0: 900, 1: 20, 2: 5})
    asked = {
        ("orders", 0): Settled(3),
        ("orders", 1): Settled(4, [(4, 9), (10, 12)]),
        ("orders", 2): Settled(5),  # all of it
    }
    again = {("orders", 0): Settled(800), ("orders", 1): Settled(0)}
    assert found(cluster, asked, again, {}) == [
        {("orders", 0): 3, ("orders", 1): 9, ("orders", 2): None},
        {("orders", 0): 800, ("orders", 1): 0},
        {},
    ]


def test_a_head_has_its_timestamp(cluster: MockCluster) -> None:
    fill(cluster, "orders", {0: 9})
    with closing(HeadReader({"bootstrap.servers": cluster.bootstrap}, "nobody")) as reader:
        [raw] = reader.heads({("orders", 0): Settled(7)}).values()
    assert raw is not None
    assert raw.timestamp()[1] == FIRST_MS + 7000


def test_a_partition_that_cannot_be_read_is_left_out(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its age is unknown; those of the others are not."""
    monkeypatch.setattr(heads, "DEADLINE_S", 2.0)
    fill(cluster, "orders", {0: 9})
    asked = {("orders", 0): Settled(0), ("orders", 99): Settled(0)}
    assert found(cluster, asked) == [{("orders", 0): 0}]


def test_a_service_with_large_records_has_its_heads_read() -> None:
    """The library refuses a fetch.max.bytes below the file's message.max.bytes."""
    large = {"message.max.bytes": 10_000_000, "log_level": 0}
    HeadReader({"bootstrap.servers": "127.0.0.1:9", **large}, "nobody").close()
