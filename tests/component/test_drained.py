"""The drain: what is left is what the group does not know, and not what waits for its time."""

import pytest

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.outcome import Failed, Output, Reject, Unavailable
from kworker.worker.retries.dead_letter_limit import DeadLetterLimitPolicy
from kworker.worker.retries.policy import RetryPolicy
from tests.support.poll_loop_rig import GROUP, HOLD, RESULTS, Bench

BOTH = pytest.mark.parametrize("name", ["", "w-0"], ids=["at least once", "exactly once"])
RECORDS = 5


@pytest.fixture
def kafka() -> MemoryKafka:
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo")
    kafka.create(RESULTS)
    for i in range(RECORDS):
        kafka.append("foo", value=b"%d" % i, key=b"k%d" % i)
    return kafka


def bench_of(kafka: MemoryKafka, name: str, **options: object) -> Bench:
    bench = Bench(kafka, ["foo"], transactional=name, **options)  # type: ignore[arg-type]
    bench.turn(2)
    return bench


def drained(bench: Bench) -> int:
    """Told to stop, and long after: how many records are left."""
    bench.poll_loop.stop_taking()
    bench.turn(200)
    return bench.poll_loop.unfinished


@BOTH
@pytest.mark.parametrize("results", [0, 2, RECORDS])
def test_finished_uncommitted_records_count_as_left(
    kafka: MemoryKafka, name: str, results: int
) -> None:
    """Such records come again, so the exit code says so, with the count."""
    bench = bench_of(kafka, name)
    kafka.up = False
    for i, record in enumerate(list(bench.pool.held)):
        outputs = [Output(RESULTS, None, b"r", [])] if i < results else None
        bench.pool.end(record, outputs)
    assert drained(bench) == RECORDS
    kafka.up = True
    bench.turn(60)
    assert bench.poll_loop.unfinished == 0
    assert kafka.committed(GROUP)["foo", 0] == RECORDS
    assert len(kafka.records(RESULTS)) == results


@BOTH
def test_committed_records_are_not_counted_as_left(kafka: MemoryKafka, name: str) -> None:
    bench = bench_of(kafka, name)
    bench.end(b"0", b"2", b"3")
    bench.turn(6)
    kafka.up = False
    bench.end(b"1", b"4")
    assert drained(bench) == 2


@BOTH
def test_a_handler_that_does_not_end_is_left(kafka: MemoryKafka, name: str) -> None:
    bench = bench_of(kafka, name)
    bench.end(b"1", b"2")
    assert drained(bench) == RECORDS - 2


@BOTH
def test_waiting_records_do_not_count_as_left(kafka: MemoryKafka, name: str) -> None:
    """Held keys, an outage and a reached dead-letter limit do not make the exit code 75."""
    breaker = DeadLetterLimitPolicy(0.5, 2)
    for wait, options in (
        (Failed(ValueError("held")), {"retry": HOLD}),
        (Failed(Unavailable("billing")), {}),
        (Failed(Reject("dead")), {"retry": RetryPolicy(()), "breaker": breaker}),
    ):
        bench = bench_of(kafka, name, **options)
        for record in list(bench.pool.held):
            bench.pool.end(record, wait)
        bench.turn(2)
        assert bench.poll_loop.in_hand, "an invalid run"
        assert drained(bench) == 0
        bench.consumer.close()
