"""Flow: bounds that hold, pauses that are rare, and no partition that starves the others."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kworker.core.flow import Flow, FlowPolicy
from kworker.core.pauses import EVERYTHING_PAUSED, NOTHING_PAUSED, PausedTopics
from kworker.core.record import Partition, Record
from tests.support.records import a_partition, a_record

PATIENCE_S = STARVING_S = 0.5
BACKLOG = 1_000_000


def taken(flow: Flow, partition: Partition, count: int, size: int = 1) -> list[Record]:
    records = [a_record(partition, size=size) for _ in range(count)]
    flow.enter(partition, [record.memory_bytes for record in records])
    return records


def backlogged(count: int) -> list[Partition]:
    """Partitions of which the brokers told that they hold records."""
    partitions = [a_partition(number=n) for n in range(count)]
    for partition in partitions:
        partition.end_offset = BACKLOG
    return partitions


def a_flow(records_max: int = 100, bytes_max: int = 10_000) -> tuple[Flow, Partition]:
    policy = FlowPolicy(records_max, bytes_max, patience_s=PATIENCE_S, starving_s=STARVING_S)
    return Flow(policy), a_partition()


def turn(flow: Flow, partitions: list[Partition], now: float) -> set[Partition]:
    """As the poll loop does: what is to be paused is paused."""
    flow.paused = flow.to_pause(partitions, now)
    return flow.paused


@settings(max_examples=200)
@given(
    records_max=st.integers(1, 50),
    bytes_max=st.integers(1, 5000),
    size=st.integers(1, 800),
    acts=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 60)), max_size=30),
)
def test_neither_records_nor_bytes_exceed_their_bounds(
    records_max: int, bytes_max: int, size: int, acts: list[tuple[int, int]]
) -> None:
    """Memory is bounded whatever the backlog; bytes are known from the first record on."""
    flow, partition = a_flow(records_max, bytes_max)
    held = taken(flow, partition, 1, size)
    for most, done in acts:
        room = flow.room(most)
        held += taken(flow, partition, room, size) if room else []
        assert flow.records == len(held) <= records_max
        assert flow.bytes <= max(bytes_max, size)
        ended, held = held[:done], held[done:]
        flow.leave(ended)
    flow.leave(held)
    assert (flow.records, flow.bytes) == (0, 0)
    assert (partition.in_flight, partition.in_flight_bytes) == (0, 0)


def test_the_first_take_is_bounded_in_records() -> None:
    """Nothing is known of sizes then, but `in_flight` holds from the beginning."""
    assert a_flow(records_max=10)[0].room(1000) == 10


def test_a_record_larger_than_the_bound_is_taken_alone() -> None:
    """Else it would never be taken; beside others it would break the bound."""
    flow, partition = a_flow(bytes_max=1000)
    large = taken(flow, partition, 1, size=5000)
    assert flow.room(100) == 0
    flow.leave(large)
    assert flow.room(100) == 1


def test_one_large_record_shrinks_the_next_polls_for_a_while() -> None:
    flow, partition = a_flow(records_max=1000, bytes_max=10_000)
    flow.leave(taken(flow, partition, 1, size=5000))
    rooms = []
    for _ in range(90):
        rooms.append(flow.room(1000))
        flow.leave(taken(flow, partition, 1, size=10))
    assert rooms[0] == 2
    assert rooms == sorted(rooms)
    assert rooms[-1] >= 100


def test_full_takes_nothing_and_pauses_only_after_patience() -> None:
    """Pausing throws away what the client has prefetched."""
    flow, partition = a_flow(records_max=10)
    taken(flow, partition, 10)
    assert flow.room(100) == 0
    assert [turn(flow, [partition], now) for now in (5.0, 5.2, 5.49)] == [set()] * 3
    assert turn(flow, [partition], 5.5) == {partition}


def test_a_full_flow_with_room_in_between_is_not_paused() -> None:
    """A worker with a backlog: it takes whenever records have ended, and is full again."""
    flow, partition = a_flow(records_max=10)
    held = taken(flow, partition, 10)
    for step in range(100):
        flow.leave([held.pop(0)])
        assert flow.room(100) == 1
        held += taken(flow, partition, 1)
        assert turn(flow, [partition], 5.0 + step * 0.02) == set()
    assert turn(flow, [partition], 7.3) == set()
    assert turn(flow, [partition], 7.8) == {partition}


def test_a_paused_partition_resumes_at_half() -> None:
    """Hysteresis: else it would pause and resume with every record."""
    flow, partition = a_flow(records_max=10)
    held = taken(flow, partition, 10)
    turn(flow, [partition], 5.0)
    turn(flow, [partition], 6.0)
    for left in range(9, 5, -1):
        flow.leave([held.pop()])
        assert turn(flow, [partition], 7.0) == {partition}, left
    flow.leave([held.pop(), held.pop()])
    assert turn(flow, [partition], 7.1) == set()


def test_patience_begins_anew_after_a_pause() -> None:
    flow, partition = a_flow(records_max=10)
    held = taken(flow, partition, 10)
    turn(flow, [partition], 5.0)
    turn(flow, [partition], 6.0)
    flow.leave(held)
    assert turn(flow, [partition], 7.0) == set()
    taken(flow, partition, 10)
    assert turn(flow, [partition], 7.02) == set()
    assert turn(flow, [partition], 7.4) == set()
    assert turn(flow, [partition], 7.6) == {partition}


@settings(max_examples=100)
@given(size=st.integers(1, 1000), count=st.integers(1, 10), bytes_max=st.integers(1, 3000))
def test_a_constant_load_flips_the_pause_at_most_once(
    size: int, count: int, bytes_max: int
) -> None:
    """Large records made "full" and "low" true together, and every look flipped the pause."""
    flow, partition = a_flow(records_max=10, bytes_max=bytes_max)
    flow.leave(taken(flow, partition, 1, size=1000))
    taken(flow, partition, count, size)
    states = [bool(turn(flow, [partition], step * 0.1)) for step in range(40)]
    changes = sum(a != b for a, b in pairwise(states))
    assert changes <= 1


def test_a_hot_partition_is_paused_and_the_others_go_on() -> None:
    """Pausing every partition starved eleven of them for one."""
    flow, _ = a_flow(records_max=1200, bytes_max=1 << 30)
    partitions = backlogged(12)
    hot, calm = partitions[0], partitions[1:]
    held = taken(flow, hot, 250)
    for partition in calm[1:]:
        taken(flow, partition, 60)
    assert turn(flow, partitions, 1.0) == set()
    assert turn(flow, partitions, 1.6) == {hot}
    taken(flow, calm[0], 20)
    assert flow.room(100) == 100
    flow.leave(held[:100])
    assert turn(flow, partitions, 1.7) == {hot}
    flow.leave(held[100:200])
    assert turn(flow, partitions, 1.8) == set()


def test_a_paused_hot_partition_resumes_when_the_others_leave_room() -> None:
    """Its other keys would wait for its slow one, while most of the worker is free."""
    flow, _ = a_flow(records_max=1200)
    partitions = backlogged(12)
    hot, calm = partitions[0], partitions[1:]
    taken(flow, hot, 400)
    held = [record for partition in calm[1:] for record in taken(flow, partition, 50)]
    turn(flow, partitions, 1.0)
    assert turn(flow, partitions, 1.6) == {hot}
    flow.leave(held[:400])
    assert turn(flow, partitions, 1.7) == {hot}, "another starves"
    taken(flow, calm[0], 1)
    for partition in calm[1:9]:
        partition.ledger.advance_end(BACKLOG)
    assert turn(flow, partitions, 1.8) == set()


def test_no_partition_pauses_while_there_is_room_for_all() -> None:
    """The client hands over one partition after the other: some have none in flight for a while."""
    flow, _ = a_flow(records_max=1200)
    partitions = backlogged(12)
    taken(flow, partitions[0], 300)
    now = 1.0
    for step in range(100):
        now += 0.1
        held = taken(flow, partitions[1 + step % 11], 300)
        assert turn(flow, partitions, now) == set()
        flow.leave(held)
    assert turn(flow, partitions, now + 0.6) == {partitions[0]}


def test_no_partition_starves_long_behind_what_another_prefetched() -> None:
    """The client hands over all of that first, however fast the worker takes it."""
    flow, _ = a_flow(records_max=1200)
    partitions = backlogged(12)
    now, held = 1.0, taken(flow, partitions[0], 1000)
    while not turn(flow, partitions, now):
        flow.leave(held)
        held = taken(flow, partitions[0], 1000)
        now += 0.1
        assert now < 7.0
    assert flow.paused == {partitions[0]}
    assert now > 5.9


def test_a_partition_over_its_credit_for_a_moment_is_not_paused() -> None:
    flow, _ = a_flow(records_max=1200)
    partitions = backlogged(12)
    held = taken(flow, partitions[0], 250)
    turn(flow, partitions, 1.0)
    flow.leave(held[:200])
    turn(flow, partitions, 1.3)
    taken(flow, partitions[0], 200)
    assert turn(flow, partitions, 1.6) == set()


def test_no_partition_pauses_for_busy_or_caught_up_ones() -> None:
    """A pause throws away what was prefetched, and comes back a second later."""
    flow, _ = a_flow(records_max=1200)
    partitions = backlogged(12)
    taken(flow, partitions[0], 600)
    for busy in partitions[1:6]:
        taken(flow, busy, 1)
    for idle in partitions[6:]:
        idle.ledger.advance_end(BACKLOG)
    turn(flow, partitions, 1.0)
    assert turn(flow, partitions, 9.0) == set()
    partitions[11].end_offset += 1
    turn(flow, partitions, 9.1)
    assert turn(flow, partitions, 9.7) == {partitions[0]}


def test_credit_counts_bytes_too() -> None:
    flow, _ = a_flow(records_max=1000, bytes_max=1_000_000)
    partitions = backlogged(12)
    taken(flow, partitions[0], 2, size=100_000)
    turn(flow, partitions, 1.0)
    assert turn(flow, partitions, 1.6) == {partitions[0]}


def test_the_only_partition_may_use_everything() -> None:
    flow, partition = a_flow(records_max=100)
    taken(flow, partition, 99)
    turn(flow, [partition], 1.0)
    assert turn(flow, [partition], 9.0) == set()


def test_a_crowded_partition_waits_alone_until_there_is_room() -> None:
    """A commit could not tell what is done between one more record of it; the others go on."""
    flow = Flow(FlowPolicy(10_000, 1_000_000, crowded_s=5.0))
    partitions = backlogged(2)
    ledger = partitions[0].ledger
    offsets = list(range(0, 300_000, 100))
    fit = ledger.count_fitting(offsets)
    ledger.deliver_run(offsets[:fit])
    flow.crowd(partitions[0], offsets[fit])
    assert turn(flow, partitions, 1.0) == {partitions[0]}
    assert flow.crowded(5.9) == []
    assert flow.crowded(6.1) == [partitions[0]]
    ledger.settle(offsets[fit - 100 : fit])
    assert turn(flow, partitions, 6.2) == {partitions[0]}, "too little to be worth a pause"
    ledger.settle(offsets[fit - 400 : fit])
    assert turn(flow, partitions, 6.3) == set()
    assert flow.crowded(99.0) == []


@pytest.mark.parametrize("why", ["stopped", "blocked"])
def test_while_stopped_or_blocked_nothing_is_taken(why: str) -> None:
    flow, partition = a_flow()
    setattr(flow, why, True)
    assert flow.room(100) == 0
    turn(flow, [partition], 1.0)
    assert turn(flow, [partition], 2.0) == {partition}


def test_a_stopped_flow_pauses_at_once() -> None:
    flow, partition = a_flow()
    flow.stopped = True
    assert turn(flow, [partition], 1.0) == {partition}


def test_a_blocked_flow_resumes_when_unblocked() -> None:
    """A dependency that is down means wait, and resume."""
    flow, partition = a_flow()
    flow.blocked = True
    turn(flow, [partition], 1.0)
    turn(flow, [partition], 2.0)
    flow.blocked = False
    assert turn(flow, [partition], 3.0) == set()
    assert flow.room(10) == 10


def test_a_partition_that_is_given_up_leaves_no_trace() -> None:
    """Its records in the pool come back to nobody; counting them on would fill the worker."""
    flow, partition = a_flow(records_max=10)
    other = a_partition(number=1)
    taken(flow, other, 2, size=7)
    taken(flow, partition, 8)
    turn(flow, [partition, other], 1.0)
    turn(flow, [partition, other], 2.0)
    flow.forget(partition)
    assert (flow.records, flow.bytes) == (2, 14)
    assert partition not in flow.paused
    assert turn(flow, [other], 2.1) == set()


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30), st.booleans()), max_size=40))
def test_every_paused_partition_resumes_when_all_has_ended(
    acts: list[tuple[int, int, bool]],
) -> None:
    """A paused partition that is never resumed is a stall."""
    flow, _ = a_flow(records_max=20)
    partitions = backlogged(6)
    held: list[Record] = []
    now = 0.0
    for number, count, wait in acts:
        now += 0.6 if wait else 0.01
        if room := flow.room(count):
            held += taken(flow, partitions[number], room)
        turn(flow, partitions, now)
    flow.leave(held)
    assert turn(flow, partitions, now + 0.1) == set()


# -- an operator's pause ----------------------------------------------------------------


def test_a_paused_topic_waits_until_it_is_resumed() -> None:
    flow, orders = a_flow()
    payments = a_partition("payments")
    flow.by_operator = PausedTopics(frozenset(["orders"]))
    assert turn(flow, [orders, payments], 1.0) == {orders}
    assert turn(flow, [orders, payments], 9.0) == {orders}
    flow.by_operator = EVERYTHING_PAUSED
    assert turn(flow, [orders, payments], 9.1) == {orders, payments}
    flow.by_operator = NOTHING_PAUSED
    assert turn(flow, [orders, payments], 9.2) == set()


def test_no_partition_pauses_for_one_of_a_paused_topic() -> None:
    """With records in Kafka and none in flight it would look as if it starved."""
    flow, _ = a_flow(records_max=100)
    [hot] = backlogged(1)
    waiting = a_partition("payments")
    waiting.end_offset = BACKLOG
    flow.by_operator = PausedTopics(frozenset(["payments"]))
    taken(flow, hot, 99)
    for now in (1.0, 1.6, 9.0):
        assert turn(flow, [hot, waiting], now) == {waiting}
    flow.by_operator = NOTHING_PAUSED
    turn(flow, [hot, waiting], 9.1)
    assert turn(flow, [hot, waiting], 9.2) == set()
    assert turn(flow, [hot, waiting], 9.8) == {hot}, "now it does starve"


def test_a_paused_topic_leaves_its_credit_to_the_others() -> None:
    """Half of the partitions are paused, so each of the rest may have twice as much."""
    flow, _ = a_flow(records_max=1000)
    [hot, calm] = backlogged(2)
    paused = [a_partition("payments", number) for number in range(8)]
    flow.by_operator = PausedTopics(frozenset(["payments"]))
    taken(flow, hot, 600)  # of two partitions one has a credit of two thirds, of ten 182
    turn(flow, [hot, calm, *paused], 1.0)
    assert turn(flow, [hot, calm, *paused], 1.6) == set(paused)


def test_a_full_map_is_looked_at_while_its_topic_is_paused() -> None:
    """The records in hand finish, and the partition must resume with its topic."""
    flow = Flow(FlowPolicy(10_000, 1_000_000))
    [partition] = backlogged(1)
    offsets = list(range(0, 300_000, 100))
    fit = partition.ledger.count_fitting(offsets)
    partition.ledger.deliver_run(offsets[:fit])
    flow.crowd(partition, offsets[fit])
    flow.by_operator = EVERYTHING_PAUSED
    turn(flow, [partition], 1.0)
    partition.ledger.settle(offsets[:fit])
    assert turn(flow, [partition], 2.0) == {partition}
    assert partition.map_full_from is None
    flow.by_operator = NOTHING_PAUSED
    assert turn(flow, [partition], 3.0) == set()
