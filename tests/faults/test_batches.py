"""Batches on the real Kafka: one poison among 500, and the scene "exception at bravo"."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.support.history import history
from tests.support.kafka import New, Read, Writer, read_all
from tests.support.ledgers import Invocation, Position, by_position, invocations
from tests.support.service import service
from tests.support.waiting import eventually

Topic = Callable[..., str]

HANDLERS = """
from kworker import BatchFailed, batch
from tests.support.recorded import recorded_batch

@batch(size=500, wait="1s")
@recorded_batch
def many(messages):
    for message in messages:
        if message.value == b"poison":
            raise KeyError("poison")
    return [message.value for message in messages]

@batch(size=3, wait="200ms")
@recorded_batch
def handle(messages):
    for index, message in enumerate(messages):
        if message.value == b"bravo" and message.attempt == 1:
            before = [message.value for message in messages[:index]]
            raise BatchFailed(index, ConnectionError("bravo's service"), results=before)
    return [message.value for message in messages]
"""
RECORDS, PARTITIONS, BATCH = 6_000, 2, 500
POISON = 2_345
CALLS_MOST = 10  # 1 + ⌈log2 500⌉


class Run(NamedTuple):
    """One service with both handlers, at its end."""

    foo: str
    big: str
    names: dict[Position, str]
    runs: list[Invocation]
    positions: list[int]  # of foo, as they were committed
    results: list[Read]
    dead: list[Read]
    counters: dict[str, int]

    def of(self, name: str) -> list[Invocation]:
        return [run for run in self.runs if self.names[run.position] == name]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, bootstrap: str, topic: Topic) -> Run:
    folder = tmp_path_factory.mktemp("batches")
    foo, big = topic("foo", partitions=1), topic("big", partitions=PARTITIONS)
    settings = {
        "workers": {"processes": 1, "threads": 4},
        "handlers": {big: "handlers:many"},
        "retry": {"mode": "hold", "delays": ["1s"], "never": ["KeyError"]},
    }
    writer = Writer(bootstrap, folder / "produced")
    writer.write(foo, [New(name, name.encode(), name.encode()) for name in TOGETHER])
    writer.write(big, large())
    with service(
        folder / "service", bootstrap, [foo, big], handlers=HANDLERS, settings=settings
    ) as batches:
        batches.serve()
        batches.caught_up()
        eventually(lambda: batches.counter("done") == RECORDS + 2, what="all are counted")
        counters = batches.status()["counters"]
        assert batches.stop() == 0
    return Run(
        foo,
        big,
        {record.position: record.identity for record in writer.acked},
        invocations(batches.ledger),
        [c.position for c in history(bootstrap, batches.name) if c.at == (foo, 0)],
        read_all(bootstrap, batches.results),
        read_all(bootstrap, f"{batches.name}.dead"),
        counters,
    )


TOGETHER = ["alpha", "bravo", "charlie"]


def large() -> Iterator[New]:
    for n in range(RECORDS):
        value = b"poison" if n == POISON else b"%d" % n
        yield New(f"{n}", value, b"key-%d" % n, n % PARTITIONS)


def test_one_poison_record_of_a_batch_of_500_dies_alone(run: Run) -> None:
    """No record is called more often than the halving of one batch needs."""
    runs = by_position([each for each in run.runs if each.at[0] == run.big])
    [poison] = [position for position in runs if run.names[position] == f"{POISON}"]
    assert [dead.source for dead in run.dead] == [poison]
    assert run.dead[0].headers["kworker-reason"] == b"rejected"
    ends = {position: sum(each.ended for each in calls) for position, calls in runs.items()}
    assert ends.pop(poison) == 0
    assert len(ends) == RECORDS - 1
    assert set(ends.values()) == {1}
    calls = {position: len(of_record) for position, of_record in runs.items()}
    assert max(calls.values()) <= CALLS_MOST
    # That is what the whole of it takes, so it was in a batch of more than 256.
    assert calls[poison] >= CALLS_MOST - 1
    assert Counter(len(of_record) for of_record in runs.values())[1] >= RECORDS - BATCH
    results = Counter(read.source for read in run.results if read.source[0] == run.big)
    assert results == dict.fromkeys(ends, 1)


def test_a_batch_that_fails_at_bravo_settles_alpha(run: Run) -> None:
    """Alpha is done, published, committed; bravo comes again; charlie as if never called."""
    alpha, bravo, charlie = (run.of(name) for name in TOGETHER)
    assert [(each.attempt, each.ended) for each in alpha] == [(1, True)]
    assert [(each.attempt, each.ended) for each in bravo] == [(1, False), (2, True)]
    assert [(each.attempt, each.ended) for each in charlie] == [(1, False), (1, True)]
    together = [alpha[0], bravo[0], charlie[0]]
    assert max(r.start_ns for r in together) <= min(r.end_ns or 0 for r in together)
    assert run.positions[-1] == 3
    assert 1 in run.positions
    assert 2 not in run.positions
    assert charlie[1].start_ns < bravo[1].start_ns, "it comes at once, and bravo in its time"
    assert sorted(read.source[2] for read in run.results if read.source[0] == run.foo) == [0, 1, 2]
