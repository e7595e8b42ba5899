"""The contract of settling exactly once: on a real broker and on the twin alike."""

import itertools
import os
from typing import Any

import pytest

from kworker.clients.errors import Broken
from kworker.clients.memory.transactor import MemoryTransactor
from kworker.core.outcome import Output
from kworker.worker.publish.in_doubt import FencedByTwin
from tests.component.test_exactly_once import Faulty
from tests.contract.test_transactions import new_id, opened, values_after
from tests.support.kafka_and_twin import Cluster, Twin
from tests.support.maps import named_beyond
from tests.support.member import for_a_while, new_group, until
from tests.support.poll_loop_rig import (
    GROUP,
    LIMIT_S,
    RESULTS,
    REVOKE_TIMEOUT_S,
    Bench,
    Clock,
    take_turns,
    two_partitions,
)
from tests.support.settler import Settler

WORDS = (b"alpha", b"bravo", b"charlie")
# Never, within a test: what is produced stays in an open transaction until something else ends it.
NEVER_S = 600.0
LOOKS = itertools.count()


@pytest.fixture
def source(kafka: Cluster) -> str:
    """A topic of one partition with alpha, bravo and charlie."""
    topic = kafka.create()
    for word in WORDS:
        kafka.write(topic, value=word)
    return topic


def settler(
    kafka: Cluster, source: str, group: str = "", name: str = "", **options: Any
) -> Settler:
    return Settler(kafka, source, group=group or new_group(), name=name or new_id(), **options)


def with_all_in_hand(*settlers: Settler, words: tuple[bytes, ...] = WORDS) -> None:
    until(lambda: sorted(w for s in settlers for w in s.in_hand() if w) == sorted(words), *settlers)


def visible(kafka: Cluster, topic: str) -> list[bytes]:
    """What a reader gets of a topic, but for the marks of those who looked."""
    mark = b"looked-%d" % next(LOOKS)
    values = values_after(kafka, topic, mark)
    return sorted(value for value in values if value and not value.startswith(b"looked"))


def start_committed(settler: Settler) -> None:
    """Waits for the first transaction, which commits where the group begins."""
    until(lambda: settler.poll_loop.transactions.totals[0] == 1, settler)


def settled(settler: Settler) -> None:
    until(lambda: settler.poll_loop.settled, settler)


def test_results_and_positions_become_visible_together(kafka: Cluster, source: str) -> None:
    """What ended beyond one that is not done is named by the map, and not done again."""
    results, group, name = kafka.create(), new_group(), new_id()
    one = settler(kafka, source, group, name)
    with_all_in_hand(one)
    one.end(b"charlie", b"bravo", topic=results)
    settled(one)
    assert visible(kafka, results) == [b"bravo", b"charlie"]
    held = one.consumer.positions([(source, 0)], 10.0)[source, 0]
    assert held.position == 0
    assert [*itertools.chain(*named_beyond(0, held.metadata))] == [1, 2]
    one.consumer.close()
    two = settler(kafka, source, group, name)
    until(two.in_hand, two)
    for_a_while(two)
    assert two.in_hand() == [b"alpha"]


def test_an_uncommitted_result_is_invisible(kafka: Cluster, source: str) -> None:
    """And a successor under the same name ends it at once, and does it again."""
    results, group, name = kafka.create(), new_group(), new_id()
    place = {"group_instance_id": "static"}
    one = settler(kafka, source, group, name, interval_s=NEVER_S, **place)
    with_all_in_hand(one)
    one.end(*WORDS, topic=results)
    for_a_while(one)
    two = settler(kafka, source, group, name, **place)
    with_all_in_hand(two)
    two.end(*WORDS, topic=results)
    settled(two)
    assert visible(kafka, results) == [*WORDS]


@pytest.mark.parametrize("once", [True, False], ids=["exactly once", "at least once"])
@pytest.mark.parametrize("fault", ["invalid", "too large"])
def test_a_result_refused_for_good_dies_and_takes_no_other_along(
    kafka: Cluster, source: str, once: bool, fault: str
) -> None:
    """The result fails the whole batch that it is in, the same on every try."""
    results, dead = kafka.create(), kafka.create()
    one = settler(kafka, source, once=once, dead=dead)
    with_all_in_hand(one)
    if fault == "invalid":
        kafka.change(results, cleanup_policy="compact")
        one.end(b"bravo", topic=results, key=None)
    else:
        kafka.change(results, max_message_bytes="2000")
        one.end(b"bravo", topic=results, key=b"k", result=os.urandom(5_000))
    one.end(b"alpha", topic=results, key=b"a")
    one.end(b"charlie", topic=results, key=b"c")
    settled(one)
    assert visible(kafka, results) == [b"alpha", b"charlie"]
    assert visible(kafka, dead) == [b"bravo"]
    assert one.poll_loop.settlement.counters.dead == 1
    assert one.poll_loop.problems == []
    held = one.consumer.positions([(source, 0)], 10.0)[source, 0]
    assert held.position == 3


@pytest.mark.parametrize("call", ["begin", "send_positions", "commit"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_groups_position_decides_an_in_doubt_transaction(
    kafka: Cluster, source: str, call: str, when: str
) -> None:
    """Committed though the call failed, or not though it was made: each result is there once."""
    results = kafka.create()
    planned: list[tuple[str, str]] = []
    one = settler(kafka, source, wrap=lambda transactor: Faulty(transactor, planned))
    with_all_in_hand(one)
    start_committed(one)
    planned.append((call, when))
    one.end(*WORDS, topic=results)
    settled(one)
    assert planned == []
    assert visible(kafka, results) == [*WORDS]
    held = one.consumer.positions([(source, 0)], 10.0)[source, 0]
    assert held.position == 3
    lost = call == "send_positions" or (call, when) == ("commit", "before")
    committed, _, aborted, _ = one.poll_loop.transactions.totals
    assert (committed, aborted) == (2, int(lost))


def test_transactions_are_counted_by_their_ends(kafka: Cluster, source: str) -> None:
    """With the time from their begin, in which their outcomes wait."""
    results = kafka.create()
    planned: list[tuple[str, str]] = []
    one = settler(kafka, source, wrap=lambda transactor: Faulty(transactor, planned))
    with_all_in_hand(one)
    start_committed(one)
    planned.append(("send_positions", "stale"))
    for word in WORDS:
        one.end(word, topic=results)
        settled(one)
        planned.append(("begin", "before"))  # a transaction that has not begun has no end
    assert visible(kafka, results) == [*WORDS]
    committed, committed_us, aborted, aborted_us = one.poll_loop.transactions.totals
    assert (committed, aborted) == (1 + len(WORDS), 1)
    assert 0 < committed_us < 60e6
    assert 0 < aborted_us < 60e6


def by_a_stranger(kafka: Cluster, name: str) -> None:
    """Somebody else's init_transactions, and no more."""
    opened(kafka, name).close()


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("open_", [False, True], ids=["between", "within"])
def test_a_stolen_transactional_id_is_taken_back(
    kafka: Cluster, source: str, kind: str, open_: bool
) -> None:
    """Results that the fence aborted are written again, and are there once."""
    results, name = kafka.create(), new_id()
    static = {"group_instance_id": name} if kind == "static" else {}
    one = settler(kafka, source, name=name, interval_s=1.5 if open_ else 0.1, **static)
    with_all_in_hand(one)
    if open_:
        one.end(b"alpha", topic=results)
        for_a_while(one)
    by_a_stranger(kafka, name)
    one.end(*[word for word in one.in_hand() if word], topic=results)
    settled(one)
    assert visible(kafka, results) == [*WORDS]
    held = one.consumer.positions([(source, 0)], 10.0)[source, 0]
    assert held.position == 3
    assert one.poll_loop.problems == []


def test_an_id_stolen_again_and_again_ends_its_worker(kafka: Cluster, source: str) -> None:
    """Only a fight that lasts: by then somebody has to hear of it. Nothing is there twice."""
    results, name = kafka.create(), new_id()
    one = settler(kafka, source, name=name)
    with_all_in_hand(one)
    for word in WORDS:
        by_a_stranger(kafka, name)
        one.end(word, topic=results)
        settled(one)
    kafka.write(source, value=b"delta")
    until(one.in_hand, one)
    by_a_stranger(kafka, name)
    one.end(b"delta", topic=results)
    with pytest.raises(FencedByTwin, match=f"{name} 4 times within 60 s: end that process"):
        until(lambda: False, one)
    assert visible(kafka, results) == [*WORDS]


def test_the_first_of_two_with_one_transactional_id_goes_on(kafka: Cluster) -> None:
    """A second copy among dynamic members: only their transactions know of each other."""
    results, name, numbers = kafka.create(), new_id(), itertools.count()
    ours, theirs = kafka.create(), kafka.create()
    first = settler(kafka, ours, name=name)
    second = settler(kafka, theirs, name=name, young=True)
    written: list[bytes] = []

    def contend(source: str, one: Settler) -> bytes:
        value = b"%d of %s" % (next(numbers), source.encode())
        kafka.write(source, value=value)
        until(one.in_hand, first, second)
        one.end(value, topic=results)
        until(lambda: one.poll_loop.settled, first, second)
        return value

    def contend_on() -> None:
        while True:
            written.append(contend(ours, first))
            contend(theirs, second)

    with pytest.raises(FencedByTwin, match="times in the first"):
        contend_on()
    first.end(*[value for value in first.in_hand() if value], topic=results)
    settled(first)
    seen = visible(kafka, results)
    assert {*written} <= {*seen}
    assert len(seen) == len({*seen})


MEMBERS: list[dict[str, str]] = [
    {},
    {"group_instance_id": "static-{}"},
    {"group_protocol": "consumer"},
]


def member(kind: dict[str, str], number: int) -> dict[str, str]:
    return {key: value.format(number) for key, value in kind.items()}


@pytest.mark.parametrize("kind", MEMBERS, ids=["dynamic", "static", "kip-848"])
def test_an_open_transaction_is_committed_before_a_revoke(
    kafka: Cluster, kind: dict[str, str]
) -> None:
    """What has ended is not done again by the next owner."""
    source, results, group = kafka.create(2), kafka.create(), new_group()
    for partition in (0, 1):
        kafka.write(source, partition, value=b"of %d" % partition)
    one = settler(kafka, source, group, interval_s=NEVER_S, **member(kind, 1))
    until(lambda: len(one.in_hand()) == 2, one)
    one.end(b"of 0", b"of 1", topic=results)
    for_a_while(one)
    two = settler(kafka, source, group, **member(kind, 2))
    until(lambda: len(one.owned) == len(two.owned) == 1, one, two)
    for_a_while(one, two)
    assert two.in_hand() == []
    assert visible(kafka, results) == [b"of 0", b"of 1"]


@pytest.mark.parametrize("kind", MEMBERS, ids=["dynamic", "static", "kip-848"])
def test_an_orphaned_runs_result_comes_from_the_next_owner_only(
    kafka: Cluster, kind: dict[str, str]
) -> None:
    source, results, group = kafka.create(2), kafka.create(), new_group()
    for partition in (0, 1):
        kafka.write(source, partition, value=b"of %d" % partition)
    one = settler(kafka, source, group, **member(kind, 1))
    until(lambda: len(one.in_hand()) == 2, one)
    late = list(one.pool.held)
    two = settler(kafka, source, group, **member(kind, 2))
    until(lambda: two.in_hand(), one, two)
    for record in late:
        one.end(record.raw.value() or b"", topic=results, result=b"one's")
    [value] = two.in_hand()
    two.end(value or b"", topic=results, result=b"two's")
    until(lambda: two.poll_loop.settled and len(one.owned) == 1, one, two)
    while again := one.in_hand():
        one.end(*[value for value in again if value], topic=results, result=b"one's")
    settled(one)
    assert visible(kafka, results) == [b"one's", b"two's"]


def test_a_worker_away_too_long_makes_nothing_visible(kafka: Cluster) -> None:
    """Its transaction was open: its partitions are another's, and so are their records."""
    source, results, group = kafka.create(), kafka.create(), new_group()
    kafka.write(source, value=b"alpha")
    away = {"max_poll_interval_ms": 6000}
    one = settler(kafka, source, group, interval_s=NEVER_S, **away)
    with_all_in_hand(one, words=(b"alpha",))
    one.end(b"alpha", topic=results, result=b"one's")
    for_a_while(one)
    if isinstance(kafka, Twin):
        one.consumer.expire()
    two = settler(kafka, source, group, **away)
    with_all_in_hand(two, words=(b"alpha",))
    two.end(b"alpha", topic=results, result=b"two's")
    settled(two)
    until(lambda: not one.poll_loop.settlement.pending, one, two)
    settled(one)
    assert visible(kafka, results) == [b"two's"]


def test_a_transaction_past_its_timeout_is_our_own_fence() -> None:
    """The coordinator has ended it: nobody else has the name, and all of it is done again."""
    kafka = two_partitions(records=1)
    bench = Bench(kafka, ["foo"], transactional="w-0")
    bench.turn(3)
    kafka.writable = False
    bench.end_with_result(b"0-0")
    bench.turn(3)
    bench.clock.now += LIMIT_S
    kafka.expire("w-0")
    kafka.writable = True
    bench.turn(8)
    assert [raw.value() for raw in kafka.records(RESULTS)] == [b"result of 0-0"]
    assert bench.poll_loop.problems == []


def test_a_fence_after_an_in_doubt_transaction_is_excused_once() -> None:
    """A request of ours may still have been under way; what comes after it is another's doing."""
    kafka = two_partitions(records=4)
    planned = [("commit", "after")]
    bench = Bench(
        kafka,
        ["foo"],
        transactional="w-0",
        transactor=lambda made: Faulty(made, planned),
        began=Clock().now,
    )
    bench.turn(3)
    bench.end_with_result(b"0-0")
    bench.turn(6)
    assert planned == []
    for number, value in enumerate([b"0-1", b"0-2"], 2):
        by_a_stranger(Twin(kafka), "w-0")
        bench.end_with_result(value)
        bench.turn(8)
        assert len(kafka.records(RESULTS)) == number
    by_a_stranger(Twin(kafka), "w-0")
    bench.end_with_result(b"0-3")
    with pytest.raises(FencedByTwin):
        bench.turn(8)


def test_a_former_member_does_not_take_its_id_back() -> None:
    """The stranger that took the id may own its partitions, too."""
    kafka = two_partitions(records=1)
    bench = Bench(kafka, ["foo"], transactional="w-0")
    bench.turn(3)
    stranger = opened(Twin(kafka), "w-0")
    bench.end_with_result(b"0-0")
    bench.consumer.expire()
    bench.poll_loop._guarantee.turn(bench.clock.now)
    for _ in range(4):
        bench.clock.now += 1.0
        bench.poll_loop._guarantee.turn(bench.clock.now)
    assert kafka.installed("w-0") is stranger
    bench.turn(8)
    assert kafka.installed("w-0") is not stranger


def test_a_revoke_does_not_wait_for_a_broker_that_is_silent() -> None:
    """What was produced by then is aborted, and done by the next owner."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock, transactional="w-0")
    one.turn(3)
    one.end_with_result(b"0-0")
    one.end_with_result(b"1-0")
    kafka.writable = False
    two = Bench(kafka, ["foo"], clock=clock, transactional="w-1")
    before = clock.now
    one.turn()
    assert clock.now - before < REVOKE_TIMEOUT_S + 1
    kafka.writable = True
    take_turns(one, two)
    for bench in (one, two):
        for value in bench.in_hand():
            bench.end_with_result(value or b"")
    take_turns(one, two)
    written = sorted(raw.value() or b"" for raw in kafka.records(RESULTS))
    assert written == [b"result of 0-0", b"result of 1-0"]
    assert kafka.committed(GROUP)["foo", 0] == kafka.committed(GROUP)["foo", 1] == 1


def test_a_drain_commits_its_transaction_whole_or_not_at_all() -> None:
    """Results that Kafka did not accept in time are delivered again, and were never visible."""
    kafka = two_partitions(records=1)
    bench = Bench(kafka, ["foo"], transactional="w-0")
    bench.turn(3)
    bench.end_with_result(b"0-0")
    bench.turn()
    kafka.writable = False
    bench.poll_loop.stop_taking()
    bench.turn(4)
    assert bench.poll_loop.settlement.pending == 1
    kafka.writable = True
    bench.poll_loop.end(bench.clock.now + 10)
    assert kafka.records(RESULTS) == []
    assert kafka.committed(GROUP)["foo", 0] == 0


class Denying:
    """A transactor of which one topic takes nothing, and nobody tells which: as without a right."""

    def __init__(self, transactor: MemoryTransactor, topic: str) -> None:
        self._transactor = transactor
        self._topic = topic
        self._broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transactor, name)

    def queue(self, output: Output, refused: Any) -> None:
        if self._broken:
            raise Broken("erroneous state")
        self._broken = output.topic == self._topic
        if not self._broken:
            self._transactor.queue(output, refused)

    @property
    def unfinished(self) -> int:
        return self._transactor.unfinished + self._broken

    def problem(self) -> str | None:
        return "topic authorization failed" if self._broken else None

    def abort(self) -> None:
        self._broken = False
        self._transactor.abort()


@pytest.mark.parametrize("first", [0, 1])
def test_an_unnamed_refusing_topic_is_isolated(first: int) -> None:
    """Each transaction with it is lost whole, so it is tried apart from the others."""
    kafka = two_partitions(records=2)
    kafka.create("denied")
    bench = Bench(
        kafka, ["foo"], transactional="w-0", transactor=lambda made: Denying(made, "denied")
    )
    bench.turn(3)
    for number, value in enumerate([b"0-0", b"0-1", b"1-0", b"1-1"]):
        topic = "denied" if number % 2 == first else RESULTS
        bench.pool.end(bench.holds(value), [Output(topic, None, value, [])])
    bench.turn(40)
    written = sorted(raw.value() or b"" for raw in kafka.records(RESULTS))
    assert written == [[b"0-1", b"1-1"], [b"0-0", b"1-0"]][first]
    assert bench.poll_loop.settlement.pending == 2
    assert any("denied: topic authorization failed" in r for r in bench.poll_loop.problems)
    assert not any(reason.startswith(RESULTS) for reason in bench.poll_loop.problems)


def test_a_rebalance_blames_no_topic_for_refused_positions() -> None:
    """That positions are refused is not the doing of what goes with them."""
    kafka, clock = two_partitions(records=1), Clock()
    planned = [("send_positions", "stale")]
    bench = Bench(
        kafka,
        ["foo"],
        clock=clock,
        transactional="w-0",
        transactor=lambda made: Faulty(made, planned),
    )
    bench.turn(3)
    bench.end_with_result(b"0-0")
    bench.turn(6)
    assert planned == []
    assert len(kafka.records(RESULTS)) == 1
