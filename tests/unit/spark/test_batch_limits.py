"""How much one batch of a table takes: by records, by a sample of their bytes, after a death."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kworker import host
from kworker.clients.samples import record_bytes
from kworker.config.model import SparkSettings, TableSettings
from kworker.spark.batch_limits import RECENT, BatchLimit, BatchLimits, limit_of, pending_ranges
from tests.support.mock_cluster import MockCluster

MIB = 1 << 20


def table(**settings: object) -> TableSettings:
    return TableSettings.model_validate({"name": "orders", "path": "/data/orders", **settings})


def spark(**settings: object) -> SparkSettings:
    return SparkSettings.model_validate({"tables": [table()], **settings})


@pytest.mark.parametrize(
    ("record_bytes", "most"),
    [(None, 500), (0.0, 500), (10.0, 500), (MIB / 100, 100), (MIB, 1), (9.0 * MIB, 1)],
)
def test_a_batch_is_bounded_in_records_and_in_bytes(record_bytes: float | None, most: int) -> None:
    """At least one: a record larger than the bound must go, too."""
    assert BatchLimit(500, MIB).of(record_bytes) == most


@pytest.mark.parametrize(
    ("most", "records", "size", "becomes"),
    [
        (100, 100, 2 * MIB, 50),  # twice as large as was thought
        (100, 100, MIB + MIB // 2, None),
        (100, 60, 3 * MIB, 20),  # not full, and far too large
        (100, 60, MIB, None),  # there were no more
        (100, 95, MIB // 5, 400),  # so more of them would do, but not at once as many as that
        (500, 500, MIB // 5, None),  # and no more are wanted
        (100, 0, 0, None),
    ],
)
def test_results_of_another_size_are_noticed(
    tmp_path: Path, most: int, records: int, size: int, becomes: int | None
) -> None:
    """And the next bound goes by them, and not by another sample that would say the same."""
    limits = BatchLimits(spark(batch_records=500, batch_bytes="1MiB"), tmp_path, lambda _: None)
    assert limits.resize(table(), most, records, size) is (becomes is not None)
    assert limits.records_max(table(), {}) == (becomes or 500)


def test_a_tables_own_bounds_go_before_those_of_all() -> None:
    common = spark(batch_records=1_000, batch_bytes="1MiB")
    assert limit_of(common, table()) == BatchLimit(1_000, MIB)
    assert limit_of(common, table(batch_records=7)) == BatchLimit(7, MIB)
    assert limit_of(common, table(batch_bytes="2MiB")) == BatchLimit(1_000, 2 * MIB)


def test_waiting_records_are_measured_or_else_recent_ones() -> None:
    """A table that has caught up shall not be surprised by the next batch."""
    assert pending_ranges({0: 10, 1: 5_000}, {0: 9_000, 1: 5_000, 2: 300}) == {
        0: (10, 9_000),
        1: (5_000 - RECENT, 5_000),
        2: (0, 300),
    }


def test_an_out_of_memory_death_makes_the_next_batches_smaller(tmp_path: Path) -> None:
    """As often as it takes, and only where one was."""
    os.mkdir(tmp_path / "spark")
    waiting = {0: (0, 100)}
    for most, next_ in [(900, 225), (225, 56), (3, 1), (1, 1)]:
        limits = BatchLimits(spark(batch_records=900), tmp_path, lambda _: None)
        assert f"(orders {next_})" in limits.lower({"orders": most})
        assert limits.records_max(table(), waiting) == next_
        assert not limits.resize(table(), next_, next_, 1), "lowered stays lowered"
    assert limits.records_max(table(name="others"), waiting) == 900
    limits.forget()
    assert limits.records_max(table(), waiting) == 900


def test_a_range_is_sampled_once_for_all_tables(tmp_path: Path) -> None:
    """Six tables that stand at the same positions begin as fast as one."""
    answers = [None, 100.0]  # Kafka was silent at first: asked again
    limits = BatchLimits(spark(), tmp_path, lambda _: answers.pop(0))
    for name in ("a", "b", "c"):
        limits.records_max(table(name=name), {0: (0, 100)})
    assert answers == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


def fill(cluster: MockCluster, topic: str, sizes: dict[int, list[int]]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for partition, each in sizes.items():
        for size in each:
            producer.produce(topic, b"v" * size, key=b"key", partition=partition)
    assert producer.flush(30) == 0


def sampled(cluster: MockCluster, topic: str, waiting: dict[int, tuple[int, int]]) -> float | None:
    return record_bytes({"bootstrap.servers": cluster.bootstrap}, topic, waiting.items())


def test_the_size_of_records_is_found_where_they_are_largest(cluster: MockCluster) -> None:
    """In the middle of a backlog, of one partition: a mean of all would be far too small."""
    large = 20_000
    fill(cluster, "mixed", {0: [100] * 500, 1: [100] * 200 + [large] * 200 + [100] * 200})
    assert sampled(cluster, "mixed", {0: (0, 500), 1: (0, 600)}) == large + 3
    assert sampled(cluster, "mixed", {0: (0, 500)}) == 103
    assert sampled(cluster, "mixed", {1: (450, 600)}) == 103


def test_the_size_of_missing_records_is_unknown(cluster: MockCluster) -> None:
    fill(cluster, "short", {0: [100] * 3})
    assert sampled(cluster, "short", {0: (3, 3)}) is None
    assert sampled(cluster, "short", {}) is None
    assert sampled(cluster, "short", {0: (0, 3)}) == 103


def test_memory_is_what_the_innermost_limit_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the machine's own would be far too much."""
    there = host.memory_bytes()
    monkeypatch.setattr(host, "_CGROUPS", tmp_path)
    assert host.memory_bytes() >= there > 1 << 28
    (tmp_path / "memory.max").write_text("max\n")
    assert host.memory_bytes() >= there
    (tmp_path / "memory.max").write_text("268435456\n")
    assert host.memory_bytes() == 1 << 28
    monkeypatch.setattr(host, "memory_bytes", lambda: 3 << 30)
    assert host.spark_heap_bytes() == 1 << 30
    monkeypatch.setattr(host, "memory_bytes", lambda: 8 << 30)
    assert host.spark_heap_bytes() == 2 << 30
    monkeypatch.setattr(host, "memory_bytes", lambda: 512 << 30)
    assert host.spark_heap_bytes() == 4 << 30
