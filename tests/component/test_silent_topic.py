"""A topic whose partition has no leader or too few replicas: the poll loop over the twin."""

from collections import Counter
from itertools import product

import pytest

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.outcome import Output
from kworker.worker.retries.policy import RetryPolicy
from tests.support.poll_loop_rig import DEAD, GROUP, RESULTS, TURN_S, Bench, two_partitions

BOTH = pytest.mark.parametrize("name", ["", "w-0"], ids=["at least once", "exactly once"])
ASKED_EVERY_S = 2.0  # for end offsets, which the source topic's brokers go on to tell


def mute(kafka: MemoryKafka, topic: str, *partitions: int) -> None:
    muted = kafka.topic(topic)
    assert muted
    muted.silent = set(partitions)


def go_on(bench: Bench, seconds: float) -> None:
    """Turns; all the time the brokers answer others."""
    for _ in range(int(seconds / ASKED_EVERY_S)):
        bench.turn(int(ASKED_EVERY_S / TURN_S))
        bench.poll_loop.take_end_offsets(dict.fromkeys(bench.owned, 4))


def values(kafka: MemoryKafka, topic: str) -> list[bytes | None]:
    return [raw.value() for raw in kafka.records(topic)]


@BOTH
def test_other_topics_outputs_settle_while_one_is_silent(name: str) -> None:
    """Also those that came into its batch; only while it is tried do they wait."""
    kafka = two_partitions()
    mute(kafka, RESULTS, 0)
    bench = Bench(kafka, ["foo"], transactional=name, retry=RetryPolicy(()))
    bench.turn(2)
    bench.end_with_result(b"1-0")
    for value in (b"0-0", b"0-1"):
        bench.fail(value)
    go_on(bench, 18)
    bench.turn(10)
    assert sorted(values(kafka, DEAD)) == [b"0-0", b"0-1"]
    assert kafka.committed(GROUP)["foo", 0] == 2
    assert any(line.startswith(f"{RESULTS}: no ack") for line in bench.poll_loop.problems)
    bench.fail(b"0-2")
    bench.end(b"0-3")
    bench.turn(8)
    assert kafka.committed(GROUP)["foo", 0] == 4
    assert bench.poll_loop.settlement.pending == 1
    assert values(kafka, RESULTS) == []


@BOTH
def test_a_long_silence_writes_each_output_once(name: str) -> None:
    """What was acknowledged is not written again with what was not."""
    kafka = two_partitions()
    kafka.create(RESULTS, 2)
    mute(kafka, RESULTS, 1)
    bench = Bench(kafka, ["foo"], transactional=name, retry=RetryPolicy(()))
    bench.turn(2)
    for number in range(4):
        bench.fail(b"0-%d" % number)
        value = b"1-%d" % number
        bench.pool.end(bench.holds(value), [Output(RESULTS, b"%d" % number, value, [])])
    go_on(bench, 300)
    assert kafka.committed(GROUP)["foo", 0] == 4
    assert bench.poll_loop.unfinished > 0
    mute(kafka, RESULTS)
    go_on(bench, 120)
    assert kafka.committed(GROUP)["foo", 1] == 4
    written = Counter(values(kafka, RESULTS) + values(kafka, DEAD))
    assert written == Counter(b"%d-%d" % at for at in product((0, 1), range(4)))
    assert bench.poll_loop.problems == []
    assert bench.poll_loop.idle
