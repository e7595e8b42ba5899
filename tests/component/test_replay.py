"""A replay on the twin, stepped by hand: what runs again, and what becomes of it."""

import pytest

from kworker.clients.memory.broker import MemoryKafka
from kworker.core import headers as names
from kworker.core.failure import Described, Failure
from kworker.core.outcome import Failed
from kworker.replay.ranges import OffsetRanges, TimeRange
from kworker.worker.retries.policy import RetryPolicy
from tests.support.poll_loop_rig import (
    DEAD,
    DELAYS_S,
    GROUP,
    REPLAY,
    Bench,
    retry_topic,
    take_turns,
)

STAMP = 1_700_000_000_000
ALL = TimeRange()
IN_MEMORY = RetryPolicy(DELAYS_S, hold=True)


@pytest.fixture
def kafka() -> MemoryKafka:
    """Two partitions of four records `partition-offset`, of one second each, of as many keys."""
    kafka = MemoryKafka(lambda: STAMP / 1000)
    kafka.create("foo", 2)
    for partition in (0, 1):
        for i in range(4):
            value = b"%d-%d" % (partition, i)
            kafka.append("foo", partition, value=value, key=value, timestamp=STAMP + 1000 * i)
    return kafka


def replay_of(kafka: MemoryKafka, first: int, settled: int, window: TimeRange = ALL) -> Bench:
    """Of partition 0, having begun."""
    course = OffsetRanges({("foo", 0): range(first, settled)}, window)
    bench = Bench(kafka, [], course=course, retry=IN_MEMORY)
    bench.turn(3)
    return bench


def test_exactly_the_settled_records_of_the_window_run(kafka: MemoryKafka) -> None:
    bench = replay_of(kafka, 0, 3, TimeRange(STAMP + 1000, STAMP + 10_000))
    assert bench.in_hand() == [b"0-1", b"0-2"]
    bench.end(b"0-1", b"0-2")
    kafka.append("foo", 0, value=b"later")
    bench.turn(5)
    assert bench.in_hand() == []
    assert bench.poller.idle
    assert (bench.poller.consumed, bench.poller.counters.done) == (2, 2)


def test_the_service_goes_on_undisturbed(kafka: MemoryKafka) -> None:
    """Its members keep their partitions, and its positions are nobody else's."""
    live = Bench(kafka, ["foo"])
    live.turn(2)
    live.end(b"0-0", b"0-1", b"1-0")
    live.turn()
    replay = replay_of(kafka, 0, 2)
    take_turns(live, replay)
    replay.end(b"0-0", b"0-1")
    take_turns(live, replay)
    assert kafka.committed(GROUP) == {("foo", 0): 2, ("foo", 1): 1}
    assert kafka.committed(replay.group) == {("foo", 0): 2}
    assert live.poller.assignment.rebalances == 1
    live.end(*live.in_hand())  # type: ignore[arg-type]
    live.turn()
    assert kafka.committed(GROUP) == {("foo", 0): 4, ("foo", 1): 4}


def test_a_failing_record_runs_again_within_it_as_late_as_its_delay_says(
    kafka: MemoryKafka,
) -> None:
    """A delay topic would return it to the service, as if it were new there."""
    bench = replay_of(kafka, 0, 2)
    bench.fail(b"0-0")
    bench.end(b"0-1")
    bench.turn(2)
    assert bench.in_hand() == []
    assert not bench.poller.idle
    bench.turn(4)
    assert bench.holds(b"0-0").attempt == 2
    bench.end(b"0-0")
    bench.turn(2)
    assert bench.poller.idle
    assert [kafka.records(retry_topic(delay)) for delay in DELAYS_S] == [[], []]


def test_a_dead_letter_of_a_replay_says_so(kafka: MemoryKafka) -> None:
    """Byte for byte the source's, as any; and the replay ends with it."""
    bench = replay_of(kafka, 0, 2)
    bench.end(b"0-1")
    bench.pool.end(bench.holds(b"0-0"), Failed(Described(Failure("undecodable"))))
    bench.turn(3)
    [dead] = kafka.records(DEAD)
    told = dict(dead.headers())
    assert (dead.key(), dead.value()) == (b"0-0", b"0-0")
    assert told[names.REPLAY] == REPLAY.encode()
    assert told[names.SOURCE] == b"foo/0/0/%d" % STAMP
    assert bench.poller.idle
    assert bench.poller.counters.dead == 1


def test_of_an_event_that_was_claimed_the_dead_letter_is_as_live(kafka: MemoryKafka) -> None:
    """Nobody has done it before, so what comes of its redrive is no repetition."""
    bench = replay_of(kafka, 0, 1)
    record = bench.holds(b"0-0")
    record.claim = "order-7"
    bench.pool.end(record, Failed(Described(Failure("undecodable"))))
    bench.turn(3)
    [dead] = kafka.records(DEAD)
    assert names.REPLAY not in dict(dead.headers())


def test_told_to_stop_what_has_begun_ends_and_nothing_else_begins(kafka: MemoryKafka) -> None:
    course = OffsetRanges({("foo", 0): range(4)}, TimeRange())
    bench = Bench(kafka, [], course=course, hands=2)
    bench.turn(3)
    assert bench.in_hand() == [b"0-0", b"0-1"]
    bench.drain()
    assert len(bench.pool.runs) == 2
    assert kafka.committed(bench.group) == {("foo", 0): 2}
