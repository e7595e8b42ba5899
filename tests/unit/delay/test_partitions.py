"""What is held at the head of a delay partition, when it goes, and how much of it there is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.config.model import Config
from kworker.config.topics import delay_ms, delay_pattern
from kworker.core.message import Fields, PartitionId
from kworker.delay.partitions import DelayPartition, HoldPolicy
from kworker.delay.refused import RefusedPartitions
from tests.unit.delay.test_routes import NOW, retried

A, B, C = ("o.retry.1s", 0), ("o.retry.1s", 1), ("o.retry.10s", 0)


def record(offset: int, written_ms: int = NOW, size: int = 1) -> Fields:
    return Fields((*A, offset), written_ms, None, b"v" * size, retried())


def head(
    *offsets: int, position: int | None = 0, written_ms: int = NOW, size: int = 1
) -> DelayPartition:
    made = DelayPartition(1_000, position)
    for offset in offsets:
        made.add(record(offset, written_ms, size), NOW)
    return made


def due(of: DelayPartition, now_ms: int) -> list[int]:
    return [waiting.raw.offset() for waiting in of.due(now_ms)]


def test_the_first_records_are_due_when_their_delay_is_over() -> None:
    waiting = DelayPartition(1_000, 0)
    for offset, written_ms in enumerate((NOW, NOW + 5, NOW + 5, NOW + 300)):
        waiting.add(record(offset, written_ms), NOW + 300)
    assert waiting.leaves_ms == NOW + 1_000
    assert due(waiting, NOW + 999) == []
    assert due(waiting, NOW + 1_005) == [0, 1, 2]
    assert due(waiting, NOW + 9_999) == [0, 1, 2, 3]


def test_no_delayed_record_overtakes_the_head() -> None:
    """What is behind it has the same delay, so it cannot be due for long."""
    waiting = DelayPartition(1_000, 0)
    waiting.add(record(0, NOW + 200), NOW + 200)
    waiting.add(record(1, NOW), NOW + 200)
    assert due(waiting, NOW + 1_100) == []
    assert due(waiting, NOW + 1_200) == [0, 1]


def test_the_position_is_behind_what_went_and_before_what_stays() -> None:
    """Gaps between records, such as markers of transactions, wait for nothing."""
    waiting = head(0, 3, 8)
    assert [waiting.position_after(gone) for gone in (0, 1, 2, 3)] == [0, 3, 8, 9]
    waiting.ledger.advance_end(12)
    assert waiting.position_after(3) == 12


def test_committed_records_are_not_held_any_more() -> None:
    """Positions read back after a doubt are the truth, also in the midst of a run."""
    waiting = head(0, 3, 8)
    waiting.advance_to(4)
    assert due(waiting, NOW + 9_999) == [8]
    assert waiting.position_after(0) == 8
    waiting.advance_to(9)
    assert (list(waiting.held), waiting.bytes, waiting.position_after(0)) == ([], 0, 9)


def test_a_record_that_comes_again_is_not_taken_twice() -> None:
    waiting = head(0, 1)
    waiting.add(record(1), NOW)
    waiting.advance_to(2)
    waiting.add(record(1), NOW)
    assert due(waiting, NOW + 9_999) == []


@given(
    written=st.lists(st.integers(NOW, NOW + 5_000), min_size=1, max_size=30),
    steps=st.lists(st.integers(1, 1_500), min_size=8, max_size=20),
)
def test_delayed_records_go_in_order_and_never_early(written: list[int], steps: list[int]) -> None:
    waiting = DelayPartition(1_000, 0)
    for offset, written_ms in enumerate(sorted(written)):
        waiting.add(record(offset, written_ms), NOW + 5_000)
    went: list[int] = []
    now_ms = NOW
    for step_ms in [*steps, 10_000]:
        now_ms += step_ms
        run = list(waiting.due(now_ms))
        assert all(one.raw.timestamp()[1] + 1_000 <= now_ms for one in run)
        position = waiting.position_after(len(run))
        assert position is not None
        waiting.advance_to(position)
        went += [one.raw.offset() for one in run]
    assert went == list(range(len(written)))


def paused(
    policy: HoldPolicy,
    partitions: dict[PartitionId, DelayPartition],
    before: tuple[PartitionId, ...] = (),
) -> set[PartitionId]:
    return set(policy.to_pause(partitions, before, NOW))


def test_a_delay_partition_pauses_when_full_and_resumes_at_half() -> None:
    """Thousands wait in Kafka, not in memory; and pausing costs, so steps are large."""
    policy, later = HoldPolicy(records_max=10, bytes_max=1 << 20), NOW + 10_000
    partitions = {A: head(*range(5), written_ms=later), B: head(*range(4), written_ms=later)}
    assert paused(policy, partitions) == {A}
    partitions[A].advance_to(2)
    assert paused(policy, partitions, before=(A,)) == {A}
    partitions[A].advance_to(3)
    assert paused(policy, partitions, before=(A,)) == set()


def test_bytes_count_as_records_do() -> None:
    policy = HoldPolicy(records_max=1_000, bytes_max=100_000)
    partitions = {A: head(0, 1, written_ms=NOW + 10_000, size=30_000), B: head(), C: head()}
    assert paused(policy, partitions) == {A}


def test_soon_due_records_pause_only_at_twice_the_share() -> None:
    """Pausing throws away what was prefetched, and a fetch takes its time."""
    policy = HoldPolicy(records_max=10, bytes_max=1 << 20, soon_ms=2_000)
    assert paused(policy, {A: head(*range(19))}) == set()
    assert paused(policy, {A: head(*range(20))}) == {A}


def test_one_record_larger_than_the_share_is_held_alone() -> None:
    policy = HoldPolicy(records_max=10, bytes_max=1_000)
    partitions = {A: head(0, written_ms=NOW + 10_000, size=5_000), B: head()}
    assert paused(policy, partitions) == {A}
    partitions[A].advance_to(1)
    assert paused(policy, partitions, before=(A,)) == set()


def test_a_refusal_tries_each_partition_alone() -> None:
    """What cannot be written keeps nobody else's records waiting."""
    refusals = RefusedPartitions(rest_s=1.0)
    assert refusals.choose([A, B, C], 0.0) == [A, B, C]
    refusals.refused([A, B, C], "too large")
    assert refusals.choose([A, B, C], 0.0) == [A]
    refusals.accepted([A])
    assert refusals.choose([A, B, C], 0.0) == [B]
    refusals.refused([B], "too large")
    refusals.resumed(0.0)
    assert refusals.choose([A, B, C], 0.5) == [A]
    assert refusals.choose([B, C], 0.5) == [C]
    refusals.accepted([C])
    assert refusals.choose([A, B, C], 0.5) == [A, C]
    assert refusals.problems == ["too large"]
    assert refusals.choose([A, B, C], 1.0) == [B]
    refusals.accepted([B])
    assert (refusals.choose([A, B, C], 1.0), refusals.problems) == ([A, B, C], [])


def config(name: str = "orders.eu") -> Config:
    return Config.model_validate(
        {
            "name": name,
            "file": "kworker.toml",
            "source": {"topics": ["orders"]},
            "kafka": {"common": {"bootstrap.servers": "127.0.0.1:9"}},
        }
    )


@pytest.mark.parametrize(
    ("topic", "own"),
    [
        ("orders.eu.retry.500ms", True),
        ("orders.eu.retry.10s", True),
        ("orders.eu.retry.1m", True),
        ("orders.eu.retry.24h", True),
        ("orders.eu.retry.0s", False),  # nothing would wait, and it would go round for ever
        ("orders.eu.retry.results", False),  # of a service called orders.eu.retry
        ("orders.eu.retry.retry.1s", False),
        ("orders.eu.retry.1s.dead", False),
        ("orders-eu.retry.1s", False),
        ("my.orders.eu.retry.1s", False),
    ],
)
def test_the_delay_topics_of_this_service_are_read_and_no_others(topic: str, own: bool) -> None:
    assert bool(re.search(delay_pattern(config()), topic)) is own


def test_a_delay_is_read_off_its_topic() -> None:
    assert [delay_ms(config(), f"orders.eu.retry.{name}") for name in ("500ms", "1m", "24h")] == [
        500,
        60_000,
        86_400_000,
    ]
