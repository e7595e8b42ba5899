"""Results and letters that their topics refuse for good: the poll loop over the twin."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from kworker.clients.memory.broker import MemoryKafka
from kworker.core import headers as names
from kworker.core.headers import Source
from kworker.core.message import Fields
from kworker.core.outcome import Failed, Output, TooLarge, Unpublishable
from kworker.instance.rejections import Rejections
from kworker.worker.retries.dead_letter_limit import DeadLetterLimitPolicy
from kworker.worker.retries.policy import RetryPolicy
from tests.support.poll_loop_rig import DEAD, GROUP, RESULTS, Bench, retry_topic
from tests.support.records import plain_result_of

BOTH = pytest.mark.parametrize("name", ["", "w-0"], ids=["at least once", "exactly once"])


@pytest.fixture
def kafka() -> MemoryKafka:
    """A topic of one partition, and one for results."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo")
    kafka.create(RESULTS)
    return kafka


def compact(kafka: MemoryKafka, name: str, *, compacted: bool = True) -> None:
    topic = kafka.topic(name)
    assert topic
    topic.compacted = compacted


def limit(kafka: MemoryKafka, name: str, most: int) -> None:
    topic = kafka.topic(name)
    assert topic
    topic.max_message_bytes = most


def bench_of(kafka: MemoryKafka, count: int, name: str = "", **options: object) -> Bench:
    bench = Bench(kafka, ["foo"], transactional=name, **options)  # type: ignore[arg-type]
    begin(bench, count)
    return bench


def begin(bench: Bench, count: int) -> None:
    """So many more records are in hand; their values are their offsets."""
    first = bench.kafka.log(("foo", 0)).high
    for offset in range(first, first + count):
        bench.kafka.append("foo", value=b"%d" % offset, key=b"k%d" % offset)
    bench.turn(2)


def end(bench: Bench, offsets: Iterable[int], *, null: bool = False, size: int = 0) -> None:
    """Each with a result of its own, as a handler's dictionary is one where its key is not null."""
    for offset in offsets:
        value = b"%d" % offset
        record = bench.holds(value)
        padded = value.ljust(size, b".")
        plain = plain_result_of(record, RESULTS, padded)
        bench.pool.end(record, [Output(RESULTS, None, padded, [])] if null else plain)


def until_idle(bench: Bench) -> None:
    for _ in range(1_000):
        if bench.poll_loop.idle:
            return
        bench.turn()
    raise AssertionError(f"never idle: {bench.poll_loop.problems}")


def written(kafka: MemoryKafka, topic: str = RESULTS) -> list[int]:
    """The offsets of what is there."""
    return [int((raw.value() or b"").rstrip(b".")) for raw in kafka.records(topic)]


def told(raw: Fields, name: str) -> str:
    return (dict(raw.headers() or ())[name] or b"").decode()


def reasons(kafka: MemoryKafka) -> list[str]:
    return [told(raw, names.REASON) for raw in kafka.records(DEAD)]


@BOTH
@pytest.mark.parametrize("invalid", [{49}, {0, 1}, {3, 50, 51, 98}, {99}])
def test_only_invalid_results_of_a_hundred_become_dead_letters(
    kafka: MemoryKafka, name: str, invalid: set[int]
) -> None:
    """The broker does not tell which record of a batch is the only invalid one."""
    compact(kafka, RESULTS)
    bench = bench_of(kafka, 100, name)
    for offset in range(100):
        end(bench, [offset], null=offset in invalid)
    until_idle(bench)
    assert written(kafka) == [offset for offset in range(100) if offset not in invalid]
    assert sorted(written(kafka, DEAD)) == sorted(invalid)
    assert set(reasons(kafka)) == {"unpublishable"}
    assert kafka.committed(GROUP)["foo", 0] == 100
    assert (bench.poll_loop.settlement.counters.done, bench.poll_loop.settlement.counters.dead) == (
        100 - len(invalid),
        len(invalid),
    )
    assert bench.poll_loop.problems == []
    assert bench.poll_loop.unfinished == 0


@BOTH
def test_only_results_over_a_lowered_limit_become_dead_letters(
    kafka: MemoryKafka, name: str
) -> None:
    """They were measured by the limit that was, and batches made by it."""
    bench = bench_of(kafka, 100, name)
    limit(kafka, RESULTS, 2_000)
    for offset in range(100):
        end(bench, [offset], size=5_000 if offset % 10 == 7 else 500)
    until_idle(bench)
    large = [offset for offset in range(100) if offset % 10 == 7]
    assert written(kafka) == [offset for offset in range(100) if offset not in large]
    letters = {int(raw.value() or b""): raw for raw in kafka.records(DEAD)}
    assert sorted(letters) == large
    for offset, raw in letters.items():
        stamp = kafka.records("foo")[offset].timestamp()[1]
        assert raw.key() == b"k%d" % offset
        assert told(raw, names.SOURCE) == f"foo/0/{offset}/{stamp}"
    assert bench.facts.max_bytes(RESULTS) == 2_000


@BOTH
def test_a_limit_that_was_raised_is_used_without_a_new_start(kafka: MemoryKafka, name: str) -> None:
    """The producer's own limit is made for those that the topics had."""
    bench = bench_of(kafka, 3, name)
    end(bench, [0])
    bench.turn(3)
    limit(kafka, RESULTS, 10_000_000)
    bench.learn()
    end(bench, [1], size=2_000_000)
    end(bench, [2])
    until_idle(bench)
    assert written(kafka) == [0, 1, 2]
    assert kafka.records(DEAD) == []


@BOTH
def test_a_raised_limit_is_used_while_a_batch_or_transaction_is_open(
    kafka: MemoryKafka, name: str
) -> None:
    """The producer of what is under way would refuse what the topic takes now."""
    bench = bench_of(kafka, 5, name)

    def turn(count: int = 1) -> None:
        """Shorter than the commit interval: what is open stays open."""
        for _ in range(count):
            bench.clock.now += 0.01
            bench.poll_loop.turn()

    end(bench, [0])
    turn(4)
    end(bench, [1])
    turn()
    limit(kafka, RESULTS, 10_000_000)
    large = bench.holds(b"2")
    output = Output(RESULTS, b"k2", b"2".ljust(2_000_000, b"."), [])
    bench.pool.end(large, Failed(TooLarge("it was 1 MB", [output])))
    turn()
    bench.learn()
    end(bench, [3])
    turn()
    end(bench, [4])
    until_idle(bench)
    assert sorted(written(kafka)) == [0, 1, 2, 3, 4]
    assert reasons(kafka) == []


@BOTH
@pytest.mark.parametrize("raised", [True, False])
def test_before_a_result_is_too_large_the_limit_is_asked_for(
    kafka: MemoryKafka, name: str, raised: bool
) -> None:
    """What was known is up to a minute old; the handler does not run again for that."""
    bench = bench_of(kafka, 3, name)
    if raised:
        limit(kafka, RESULTS, 10_000_000)
    large = bench.holds(b"1")
    output = Output(RESULTS, b"k1", b"1".ljust(2_000_000, b"."), [])
    bench.pool.end(large, Failed(TooLarge("it was 1 MB", [output])))
    end(bench, [0, 2])
    until_idle(bench)
    assert sorted(written(kafka)) == ([0, 1, 2] if raised else [0, 2])
    assert reasons(kafka) == ([] if raised else ["unpublishable"])
    assert len(bench.pool.runs) == 3
    assert bench.poll_loop.unfinished == 0


@BOTH
def test_a_topic_that_refuses_what_it_took_waits_and_resumes(kafka: MemoryKafka, name: str) -> None:
    """An operator made the topic compacted by mistake; one record at most is the price."""
    bench = bench_of(kafka, 40, name)
    end(bench, range(20), null=True)
    bench.turn(6)
    compact(kafka, RESULTS)
    end(bench, range(20, 40), null=True)
    bench.turn(100)
    [reason] = bench.poll_loop.problems
    assert RESULTS in reason
    assert "though it took such records before" in reason
    assert len(kafka.records(DEAD)) == 1
    assert bench.poll_loop.unfinished == 19
    compact(kafka, RESULTS, compacted=False)
    until_idle(bench)
    assert written(kafka) == [offset for offset in range(40) if offset != 20]
    assert bench.poll_loop.problems == []


@BOTH
def test_a_refused_result_dies_once_its_topic_takes_others(kafka: MemoryKafka, name: str) -> None:
    """So it was their own fault."""
    bench = bench_of(kafka, 10, name)
    end(bench, [0], null=True)
    bench.turn(4)
    compact(kafka, RESULTS)
    end(bench, [1, 2, 3], null=True)
    bench.turn(40)
    assert bench.poll_loop.problems
    end(bench, range(4, 10))
    until_idle(bench)
    assert written(kafka) == [0, 4, 5, 6, 7, 8, 9]
    assert sorted(written(kafka, DEAD)) == [1, 2, 3]


@BOTH
def test_refused_results_count_for_the_dead_letter_limit(kafka: MemoryKafka, name: str) -> None:
    """A handler that ended well is no success when what it led to is refused."""
    compact(kafka, RESULTS)
    policy = DeadLetterLimitPolicy(0.5, 20, try_every_s=5.0)
    bench = bench_of(kafka, 60, name, breaker=policy)
    end(bench, range(60), null=True)
    bench.turn(300)
    assert len(kafka.records(DEAD)) <= 20
    assert any("the breaker is open" in reason for reason in bench.poll_loop.problems)
    compact(kafka, RESULTS, compacted=False)
    until_idle(bench)
    assert len(bench.pool.runs) == 60, "run again, and not just written again"
    assert sorted(written(kafka) + written(kafka, DEAD)) == list(range(60))


@BOTH
def test_a_person_may_reject_what_its_topic_does_not_take(
    kafka: MemoryKafka, name: str, tmp_path: Path
) -> None:
    bench = bench_of(kafka, 4, name, state_dir=tmp_path)
    end(bench, [0], null=True)
    bench.turn(4)
    compact(kafka, RESULTS)
    end(bench, [1, 2, 3], null=True)
    bench.turn(40)
    assert reasons(kafka) == ["unpublishable"]
    written_ms = kafka.records("foo")[2].timestamp()[1]
    Rejections(tmp_path).add(Source("foo", 0, 2, written_ms), "ada")
    bench.turn(20)
    assert reasons(kafka) == ["unpublishable", "operator"]
    assert written(kafka, DEAD)[1:] == [2]
    assert bench.poll_loop.unfinished == 1


@BOTH
def test_a_dead_letter_refused_for_good_waits_alone(kafka: MemoryKafka, name: str) -> None:
    """The dead letter may not be dropped, and must not hold up the others."""
    bench = bench_of(kafka, 4, name, retry=RetryPolicy(()))
    kafka.append("foo", value=b"4")
    bench.turn(2)
    compact(kafka, DEAD)
    for offset in (4, 0, 1):
        bench.fail(b"%d" % offset)
    end(bench, [2, 3])
    bench.turn(60)
    assert written(kafka) == [2, 3]
    assert sorted(written(kafka, DEAD)) == [0, 1]
    [reason] = bench.poll_loop.problems
    assert reason.startswith(f"{DEAD} refuses the dead letter of foo:0:4 (")
    assert kafka.committed(GROUP)["foo", 0] == 4
    assert bench.poll_loop.unfinished == 1
    compact(kafka, DEAD, compacted=False)
    until_idle(bench)
    assert sorted(written(kafka, DEAD)) == [0, 1, 4]
    assert bench.poll_loop.problems == []


@BOTH
def test_failure_headers_are_shortened_when_topic_limits_fall(
    kafka: MemoryKafka, name: str
) -> None:
    """The record itself stays whole."""
    bench = bench_of(kafka, 2, name)
    limit(kafka, DEAD, 700)
    limit(kafka, retry_topic(1.0), 350)
    bench.pool.end(bench.holds(b"0"), Failed(ValueError("x" * 900)))
    bench.turn(12)
    [retry] = kafka.records(retry_topic(1.0))
    assert (retry.value(), names.ERROR in dict(retry.headers() or ())) == (b"0", False)
    doomed = bench.holds(b"1")
    doomed.attempt = 3
    bench.pool.end(doomed, Failed(ValueError("x" * 900)))
    until_idle(bench)
    [dead] = kafka.records(DEAD)
    assert (dead.value(), told(dead, names.REASON)) == (b"1", "exhausted")
    assert len(told(dead, names.MESSAGE)) < 900


@BOTH
def test_a_retry_refused_for_good_becomes_a_dead_letter(kafka: MemoryKafka, name: str) -> None:
    bench = bench_of(kafka, 2, name)
    kafka.append("foo", value=b"2")
    bench.turn(2)
    compact(kafka, retry_topic(1.0))
    for offset in (0, 2):
        bench.fail(b"%d" % offset)
    bench.end(b"1")
    until_idle(bench)
    assert written(kafka, retry_topic(1.0)) == [0]
    [dead] = kafka.records(DEAD)
    assert (dead.value(), told(dead, names.REASON)) == (b"2", "unpublishable")
    assert f"{retry_topic(1.0)} does not take its retry" in told(dead, names.MESSAGE)


@BOTH
def test_the_next_owner_buries_a_refused_result(kafka: MemoryKafka, name: str) -> None:
    """No dead letter by one whose record it is no more, or there would be two."""
    compact(kafka, RESULTS)
    bench = bench_of(kafka, 3, name)
    kafka.writable = False
    end(bench, [0, 2])
    end(bench, [1], null=True)
    bench.turn()
    bench.consumer.expire()
    kafka.writable = True
    bench.turn(6)
    for _ in range(40):
        for value in bench.in_hand():
            end(bench, [int(value or b"")], null=value == b"1")
        bench.turn()
    until_idle(bench)
    assert set(written(kafka)) == {0, 2}
    assert written(kafka, DEAD) == [1]
    assert kafka.committed(GROUP)["foo", 0] == 3


@BOTH
def test_a_handler_is_told_of_its_refused_result(kafka: MemoryKafka, name: str) -> None:
    """As of every dead letter; meanwhile the next record of its key goes on."""
    compact(kafka, RESULTS)
    bench = bench_of(kafka, 2, name, tells_dead=True)
    kafka.append("foo", value=b"2", key=b"k1")
    end(bench, [0])
    end(bench, [1], null=True)
    bench.turn(12)
    assert bench.in_hand() == [b"2", b"1"]
    dying = bench.holds(b"1")
    assert dying.on_dead is not None
    assert isinstance(dying.on_dead.error, Unpublishable)
    assert kafka.records(DEAD) == []
    end(bench, [2])
    bench.pool.end(dying, dying.on_dead.letter)
    until_idle(bench)
    assert written(kafka) == [0, 2]
    assert written(kafka, DEAD) == [1]
    assert bench.poll_loop.unfinished == 0
