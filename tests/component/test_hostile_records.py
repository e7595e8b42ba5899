"""Hostile records and exceptions over the twin: no turn of a poll loop or a delay loop raises."""

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.outcome import Failed, Output
from tests.support.delay_rig import DELAYS_MS, Clocks, DelayBench, broker
from tests.support.hostile import OWN_BYTES_MAX, Hostile, Sent, Topics
from tests.support.hostile_errors import HOSTILE
from tests.support.poll_loop_rig import DEAD, DELAYS_S, GROUP, REQUEUE, RESULTS, Bench, retry_topic
from tests.support.records import unheard

RECORDS = 60
PARTITIONS = 2
DELAYS = [retry_topic(delay) for delay in DELAYS_S]
TOPICS = Topics("foo", REQUEUE, DELAYS, DEAD, RESULTS, PARTITIONS)
SEEDS = st.integers(0, 2**32)


def write(kafka: MemoryKafka, sent: Sequence[Sent]) -> None:
    """As the client would hand them over."""
    for record, *_ in sent:
        at = record.topic, record.partition
        try:
            # The client's names end at a NUL.
            headers = tuple((name.split(b"\0")[0].decode(), own) for name, own in record.headers)
        except UnicodeDecodeError:
            unheard(kafka, *at, key=record.key, value=record.value)
            continue
        kafka.append(*at, key=record.key, value=record.value, headers=headers)


def hostile(seed: int, *topics: str) -> list[Sent]:
    made = Hostile(seed, TOPICS).records(10 * RECORDS)
    return [each for each in made if each.record.topic in topics][:RECORDS]


@settings(max_examples=40)
@given(SEEDS)
def test_every_hostile_record_ends_exactly_once(seed: int) -> None:
    """The end is a result, a retry or a dead letter; and everything is committed."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    for topic in ("foo", RESULTS):
        kafka.create(topic, PARTITIONS)
    for topic in (REQUEUE, DEAD, *DELAYS):
        kafka.create(topic, PARTITIONS, max_message_bytes=OWN_BYTES_MAX)
    sent = hostile(seed, "foo", REQUEUE)
    write(kafka, sent)
    bench = Bench(kafka, ["foo", REQUEUE])
    rolled = random.Random(seed)
    for _ in range(100):
        bench.turn()
        for record in list(bench.pool.held):
            result = [Output(RESULTS, None, b"result", [])]
            failed = Failed(HOSTILE[rolled.choice(list(HOSTILE))]())
            bench.pool.end(record, rolled.choice((None, result, failed, failed)))
        written = sum(len(kafka.log((t, p)).records) for t in ("foo", REQUEUE) for p in (0, 1))
        if sum(kafka.committed(GROUP).values()) == written and bench.poll_loop.idle:
            break
    counters = bench.poll_loop.settlement.counters
    ended = (len(kafka.records(DEAD)), sum(len(kafka.records(topic)) for topic in DELAYS))
    assert (counters.dead, counters.retried) == ended
    assert counters.done + counters.dead + counters.retried == len(sent)
    assert bench.poll_loop.idle


@settings(max_examples=40)
@given(SEEDS)
def test_every_waiting_hostile_record_is_forwarded_exactly_once(seed: int) -> None:
    """To the requeue topic, or as a dead letter."""
    clocks = Clocks()
    kafka = broker(clocks)
    for topic in (REQUEUE, DEAD, *DELAYS):
        found = kafka.topic(topic)
        assert found
        found.max_message_bytes = OWN_BYTES_MAX
    sent = hostile(seed, *DELAYS_MS)
    write(kafka, sent)
    bench = DelayBench(kafka, clocks)
    # The records name times of the wall clock.
    clocks.go_on(400_000_000_000)
    bench.run(30_000, step_ms=250)
    assert len(kafka.records(REQUEUE)) + len(kafka.records(DEAD)) == len(sent)
    assert bench.loop.problems == []
    assert {count for count, _ in bench.loop.waiting().values()} == {0}
