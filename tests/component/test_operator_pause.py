"""An operator's pause, with the real poll loop on the twin: nothing is taken, lost or repeated."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.headers import SOURCE
from kworker.core.pauses import ALL, order_pause, order_resumption
from kworker.instance.pause_file import PauseFile
from tests.support.poll_loop_rig import (
    GROUP,
    HOLD,
    REQUEUE,
    RESULTS,
    Bench,
    take_turns,
    two_partitions,
)

SETTLED_TURNS = 8  # more than a pause, an assignment or a commit takes
START_S = 1000.0  # of the rig's clock


class Operator:
    """Types `kworker pause` and `kworker resume`, on the clock of the workers."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pauses.json"
        self._file = PauseFile(self.path)

    def pause(self, *topics: str, at: Bench | None = None, for_s: float | None = None) -> None:
        now_ms = self._now_ms(at)
        until_ms = None if for_s is None else now_ms + round(for_s * 1000)
        orders = self._file.read()
        self._file.add(order_pause(orders, topics or [ALL], "me@here", now_ms, until_ms))

    def resume(self, *topics: str, at: Bench | None = None) -> None:
        orders = self._file.read()
        self._file.add(order_resumption(orders, topics or orders, "me@here", self._now_ms(at)))

    def _now_ms(self, at: Bench | None) -> int:
        wall = at.wall() if at else 1_700_000_000.0 + START_S
        return round(wall * 1000)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


def two_topics(records: int = 3) -> MemoryKafka:
    """Topics foo and bar of one partition each, with records of as many keys."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create(RESULTS)
    for topic in ("foo", "bar"):
        kafka.create(topic)
        append(kafka, topic, *range(records))
    return kafka


def append(kafka: MemoryKafka, topic: str, *numbers: int) -> None:
    for number in numbers:
        kafka.append(topic, value=b"%s-%d" % (topic.encode(), number), key=b"%d" % number)


def finish(bench: Bench) -> None:
    """Ends what has begun, turn by turn, until nothing more comes."""
    for _ in range(SETTLED_TURNS):
        bench.end(*[value for value in bench.in_hand() if value])
        bench.turn()


def ran(*benches: Bench) -> Counter[bytes | None]:
    return Counter(record.raw.value() for bench in benches for record in bench.pool.runs)


def committed(kafka: MemoryKafka, *topics: str) -> list[int | None]:
    return [kafka.committed(GROUP).get((topic, 0)) for topic in topics]


@pytest.mark.parametrize("transactional", ["", "orders-0"])
def test_what_is_in_hand_ends_and_nothing_more_is_taken(
    operator: Operator, transactional: str
) -> None:
    """Then the worker goes on where it was, in the same assignment."""
    kafka = two_topics()
    options = {"pauses": operator.path, "transactional": transactional}
    bench = Bench(kafka, ["foo", "bar"], **options)
    bench.turn(2)
    operator.pause()
    bench.turn()
    append(kafka, "foo", 3, 4)
    bench.turn(SETTLED_TURNS)
    assert len(bench.in_hand()) == 6
    finish(bench)
    assert committed(kafka, "foo", "bar") == [3, 3]
    assert (bench.in_hand(), bench.poll_loop.idle, bench.poll_loop.problems) == ([], True, [])
    operator.resume()
    finish(bench)
    assert committed(kafka, "foo", "bar") == [5, 3]
    assert set(ran(bench).values()) == {1}
    assert bench.poll_loop.assignment.rebalances == 1


def test_the_other_topics_go_on(operator: Operator) -> None:
    kafka = two_topics()
    operator.pause("foo")
    bench = Bench(kafka, ["foo", "bar"], pauses=operator.path)
    finish(bench)
    append(kafka, "foo", 3)
    append(kafka, "bar", 3)
    finish(bench)
    assert committed(kafka, "foo", "bar") == [None, 4]
    operator.resume("foo")
    operator.pause("bar")
    finish(bench)
    append(kafka, "bar", 4)
    finish(bench)
    assert committed(kafka, "foo", "bar") == [4, 4]
    assert set(ran(bench).values()) == {1}


def test_a_worker_that_starts_paused_takes_nothing(operator: Operator) -> None:
    """Not one record, between its assignment and its first look at the file."""
    kafka = two_topics()
    operator.pause()
    first = Bench(kafka, ["foo", "bar"], pauses=operator.path)
    first.turn(SETTLED_TURNS)
    assert first.owned
    first.drain()
    first.consumer.close()
    second = Bench(kafka, ["foo", "bar"], pauses=operator.path)
    second.turn(SETTLED_TURNS)
    assert second.owned
    assert ran(first, second) == {}
    operator.resume()
    finish(second)
    assert committed(kafka, "foo", "bar") == [3, 3]
    assert set(ran(second).values()) == {1}


def test_a_rebalance_leaves_a_pause_as_it_is(operator: Operator) -> None:
    """It forgets what was paused in the client, and brings partitions that begin."""
    kafka = two_partitions()
    one = Bench(kafka, ["foo"], pauses=operator.path, in_flight=2)
    one.turn(2)
    begun = set(ran(one))
    assert 0 < len(begun) < 8
    operator.pause()
    one.turn()
    other = Bench(kafka, ["foo"], pauses=operator.path, clock=one.clock)
    for _ in range(SETTLED_TURNS):
        take_turns(one, other, count=1)
        one.end(*[value for value in one.in_hand() if value])
    assert (len(one.owned), len(other.owned)) == (1, 1)
    assert set(ran(one, other)) == begun
    operator.resume()
    for _ in range(SETTLED_TURNS):
        finish(one)
        finish(other)
    assert kafka.committed(GROUP) == {("foo", 0): 4, ("foo", 1): 4}
    assert set(ran(one, other).values()) == {1}


def test_a_pause_ends_by_itself(operator: Operator) -> None:
    kafka = two_topics()
    bench = Bench(kafka, [], pauses=operator.path)
    operator.pause(at=bench, for_s=60.0)
    bench.consumer.subscribe(["foo", "bar"])
    bench.clock.now += 55.0
    finish(bench)
    assert ran(bench) == {}
    bench.clock.now += 5.0
    finish(bench)
    assert committed(kafka, "foo", "bar") == [3, 3]


def retry_of(kafka: MemoryKafka, topic: str, offset: int) -> None:
    """A record whose delay is over, in the requeue topic."""
    source = f"{topic}/0/{offset}/1700000000000".encode()
    headers = ((SOURCE, source), ("kworker-attempt", b"2"))
    kafka.append(REQUEUE, value=b"retry", key=b"0", headers=headers)


@pytest.mark.parametrize(
    ("topics", "waits"), [([], True), (["foo"], False), (["foo", REQUEUE], True)]
)
def test_retries_wait_if_everything_or_the_requeue_topic_is_paused(
    operator: Operator, topics: list[str], waits: bool
) -> None:
    """All retries come by one topic: those of one source topic cannot be held back alone."""
    kafka = two_topics(0)
    operator.pause(*topics)
    bench = Bench(kafka, ["foo", "bar", REQUEUE], pauses=operator.path)
    bench.turn(2)
    retry_of(kafka, "foo", 0)
    finish(bench)
    assert (ran(bench) == {}) is waits
    operator.resume()
    finish(bench)
    assert ran(bench) == {b"retry": 1}


def test_a_retry_in_memory_runs_while_its_topic_is_paused(operator: Operator) -> None:
    """It is in hand: a pause stops the intake, and nothing that was taken."""
    kafka = two_topics(1)
    bench = Bench(kafka, ["foo"], retry=HOLD, pauses=operator.path)
    bench.turn(2)
    operator.pause()
    bench.turn()
    bench.fail(b"foo-0")
    for _ in range(SETTLED_TURNS):
        bench.turn()
    assert bench.holds(b"foo-0").attempt == 2
    finish(bench)
    assert committed(kafka, "foo") == [1]


def test_a_drain_ends_at_once_while_paused(operator: Operator) -> None:
    kafka = two_topics()
    operator.pause()
    bench = Bench(kafka, ["foo", "bar"], pauses=operator.path)
    bench.turn(3)
    bench.poll_loop.stop_taking()
    assert bench.poll_loop.idle


def test_a_worker_without_room_pauses_the_rest_beside_a_paused_topic(operator: Operator) -> None:
    """It must poll on, or it loses its place in the group."""
    kafka = two_topics(10)
    operator.pause("foo")
    bench = Bench(kafka, ["foo", "bar"], pauses=operator.path, in_flight=4)
    bench.turn(SETTLED_TURNS)
    assert len(bench.in_hand()) == 4
    assert len(bench.poll_loop.flow.paused) == 2
    finish(bench)
    operator.resume()
    for _ in range(3):
        finish(bench)
    assert committed(kafka, "foo", "bar") == [10, 10]
    assert set(ran(bench).values()) == {1}


ACTS = st.one_of(
    st.tuples(st.just("pause"), st.sampled_from(["foo", "bar", ALL])),
    st.tuples(st.just("resume"), st.sampled_from(["foo", "bar", ALL])),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
    st.tuples(st.just("append"), st.sampled_from(["foo", "bar"])),
    st.tuples(st.just("join"), st.just(0)),
)


@settings(max_examples=60)
@given(st.lists(ACTS, max_size=25), st.booleans())
def test_pauses_in_any_order_lose_and_repeat_nothing(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, object]], once: bool
) -> None:
    """Beside records that end late, and rebalances."""
    operator = Operator(tmp_path_factory.mktemp("pauses"))
    kafka = two_topics(2)
    numbers = {"foo": 2, "bar": 2}

    def worker(number: int) -> Bench:
        name = f"orders-{number}" if once else ""
        return Bench(kafka, ["foo", "bar"], pauses=operator.path, transactional=name, in_flight=3)

    benches = [worker(0)]
    for act, of in acts:
        match act, of:
            case "pause", str(topic):
                operator.pause(topic)
            case "resume", str(topic):
                operator.resume(topic)
            case "append", str(topic):
                append(kafka, topic, numbers[topic])
                numbers[topic] += 1
            case "join", _ if len(benches) < 3:
                benches.append(worker(len(benches)))
            case "end", int(count):
                for bench in benches:
                    bench.end(*[value for value in bench.in_hand() if value][:count])
            case "turn", int(count):
                take_turns(*benches, count=count)
    operator.resume()
    for _ in range(sum(numbers.values())):
        for bench in benches:
            finish(bench)
    assert committed(kafka, "foo", "bar") == [numbers["foo"], numbers["bar"]]
    assert set(ran(*benches).values()) == {1}
    assert ran(*benches).total() == sum(numbers.values())
