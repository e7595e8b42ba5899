"""The real poll loop on the twin, stepped by hand: records taken, done, committed and redone."""

from collections.abc import Iterable
from math import inf

import pytest
from confluent_kafka import KafkaError

from kworker.clients.errors import Fenced
from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.event import Event
from kworker.core import offset_map
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed, TopicIdentity, encode, origin_of
from kworker.core.outcome import Failed
from kworker.instance.scoreboard import Scoreboard
from kworker.worker import assignment
from kworker.worker.publish import output_batch
from kworker.worker.publish.publisher import ReportPolicy
from kworker.worker.reporter import StatusReporter
from kworker.worker.topic_limits import TopicLimits
from tests.support.poll_loop_rig import GROUP, HOLD, RESULTS, Bench, take_turns, two_partitions

WORDS = (b"alpha", b"bravo", b"charlie")


@pytest.fixture
def kafka() -> MemoryKafka:
    """A topic of one partition with alpha, bravo and charlie, and the results' topic."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo")
    kafka.create(RESULTS)
    for word in WORDS:
        kafka.append("foo", value=word, key=word)
    return kafka


def told(kafka: MemoryKafka, position: int, topic: str = "foo") -> Committed:
    """What a commit of a position, with nothing done beyond it, is for the topic that is there."""
    [identity] = kafka.identities([topic], 1.0).values()
    return Committed(position, encode(origin_of(identity, (topic, 0)), position, []))


def published(kafka: MemoryKafka, topic: str) -> list[bytes | None]:
    return [raw.value() for raw in kafka.records(topic)]


def position(kafka: MemoryKafka, topic: str = "foo", partition: int = 0) -> int | None:
    return kafka.committed(GROUP).get((topic, partition))


def test_the_position_follows_finished_records(kafka: MemoryKafka) -> None:
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    assert bench.in_hand() == list(WORDS)
    bench.end(*WORDS)
    bench.turn()
    assert position(kafka) == 3
    kafka.append("foo", value=b"delta")
    bench.turn()
    bench.end(b"delta")
    bench.turn()
    assert position(kafka) == 4


def test_a_worker_reports_hidden_positions(kafka: MemoryKafka) -> None:
    """The turn in which the worker waits for them may last long."""
    bench = Bench(kafka, ["foo"])
    pending = kafka.group(GROUP).pending
    pending["another-0"] = {("foo", 0): Committed(1)}
    told: list[str] = []

    def meanwhile() -> float:
        if bench.poll_loop.assignment.problem:
            told.extend(bench.poll_loop.problems)
            pending.clear()
        return inf

    bench.poll_loop.assignment.beat = meanwhile
    bench.turn(2)
    [reason] = set(told)
    assert reason.startswith("the committed position of foo/0 is hidden by a transaction")
    assert bench.in_hand() == list(WORDS)
    assert bench.poll_loop.problems == []


def test_a_drain_gives_up_an_assignment_without_positions(kafka: MemoryKafka) -> None:
    """With nothing in hand there is nothing to wait for; and nothing of it begins any more."""
    bench = Bench(kafka, ["foo"])
    kafka.group(GROUP).pending["another-0"] = {("foo", 0): Committed(1)}
    bench.poll_loop.assignment.beat = lambda: 30.0
    bench.turn()
    bench.poll_loop.stop_taking()
    bench.turn(3)
    assert (bench.owned, bench.in_hand(), bench.poll_loop.idle) == ([], [], True)
    assert bench.poll_loop.problems == []


def test_unfinished_records_are_not_committed(kafka: MemoryKafka) -> None:
    """Commit at poll is the loss that others shipped."""
    bench = Bench(kafka, ["foo"])
    bench.turn(10)
    assert position(kafka) in (None, 0)


def test_commits_stop_at_the_first_unfinished_record(kafka: MemoryKafka) -> None:
    """The highest instead of the contiguous is the other one."""
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.end(b"charlie", b"alpha")
    bench.turn(3)
    assert position(kafka) == 1
    bench.end(b"bravo")
    bench.turn()
    assert position(kafka) == 3


def test_a_failure_holds_the_position_and_is_run_again_in_place(kafka: MemoryKafka) -> None:
    """Charlie is done and not done again; bravo comes again, counted; delta is not held up."""
    bench = Bench(kafka, ["foo"], retry=HOLD)
    bench.turn(2)
    bench.fail(b"bravo")
    bench.end(b"alpha", b"charlie")
    kafka.append("foo", value=b"delta", key=b"delta")
    bench.turn(2)
    assert position(kafka) == 1
    bench.end(b"delta")
    bench.turn(3)
    assert bench.in_hand() == [b"bravo"]
    assert bench.holds(b"bravo").attempt == 2
    assert position(kafka) == 1
    bench.end(b"bravo")
    bench.turn()
    assert position(kafka) == 4
    assert [r.raw.value() for r in bench.pool.runs].count(b"charlie") == 1


def test_a_failing_record_waits_longer_each_time(kafka: MemoryKafka) -> None:
    """Retried in place without a back-off it would be a hot loop."""
    bench = Bench(kafka, ["foo"], retry=HOLD)
    bench.turn(2)
    bench.end(b"alpha", b"charlie")
    waits = []
    for _ in range(7):
        bench.fail(b"bravo")
        bench.turn()
        failed_at = bench.clock.now
        while not bench.pool.held:
            bench.turn()
        waits.append(round(bench.clock.now - failed_at))
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    assert bench.poll_loop.dispatch.endings.failed == 7


def test_a_failure_holds_up_its_own_key_and_no_other(kafka: MemoryKafka) -> None:
    """A slow record delays only its own key, and that key keeps its order."""
    bench = Bench(kafka, ["foo"], retry=HOLD)
    kafka.append("foo", value=b"bravo-2", key=b"bravo")
    kafka.append("foo", value=b"echo", key=b"echo")
    bench.turn(2)
    assert bench.in_hand() == [*WORDS, b"echo"]
    bench.fail(b"bravo")
    bench.turn(2)
    assert b"bravo-2" not in bench.in_hand()
    bench.turn(5)
    bench.end(b"bravo")
    bench.turn()
    assert b"bravo-2" in bench.in_hand()


@pytest.mark.parametrize("static", ["", "host-0"])
def test_a_death_repeats_only_uncommitted_records(kafka: MemoryKafka, static: str) -> None:
    """And nothing below the committed position, nor what its map names beyond it."""
    bench = Bench(kafka, ["foo"], static=static)
    kafka.append("foo", value=b"delta", key=b"delta")
    bench.turn(2)
    bench.end(b"alpha", b"charlie")
    bench.turn()
    bench.pool.completed.add(bench.holds(b"delta"))  # known to nobody when the process dies
    if not static:
        bench.die()
    kafka.append("foo", value=b"echo", key=b"echo")
    successor = Bench(kafka, ["foo"], static=static)
    successor.turn(2)
    assert successor.in_hand() == [b"bravo", b"delta", b"echo"]
    assert (successor.poll_loop.stats().remembered, successor.poll_loop.stats().consumed) == (1, 3)
    successor.end(b"bravo", b"delta", b"echo")
    successor.turn()
    assert position(kafka) == 5


def test_a_worker_without_topic_ids_waits_and_names_the_topics(
    kafka: MemoryKafka,
) -> None:
    """An old broker, or a user who may not ask: no commit could say of which log it is."""
    kafka.tells_ids = False
    bench = Bench(kafka, ["foo"])
    told: list[list[str]] = []

    def beat() -> float:
        told.append(bench.poll_loop.problems)
        kafka.tells_ids = len(told) > 1
        return inf

    bench.poll_loop.assignment.beat = beat
    bench.turn(2)
    [reason] = told[0]
    assert reason.startswith("the brokers do not tell the ids of foo: DESCRIBE must be allowed")
    assert (bench.in_hand(), bench.poll_loop.problems) == ([*WORDS], [])


def test_a_drain_ends_the_wait_for_the_ids_of_topics(kafka: MemoryKafka) -> None:
    kafka.tells_ids = False
    bench = Bench(kafka, ["foo"])
    bench.poll_loop.assignment.beat = lambda: 0.0
    bench.turn(2)
    assert (bench.owned, bench.poll_loop.idle, bench.poll_loop.problems) == ([], True, [])
    assert kafka.group(GROUP).committed == {}


def test_partitions_of_a_missing_topic_begin_once_it_exists(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group may assign them before it hears of the end of the topic."""
    monkeypatch.setattr(assignment, "_MISSING_S", 0.0)
    there = False
    bench = Bench(
        kafka, ["foo"], identify=lambda topics, s: kafka.identities(topics, s) if there else {}
    )
    bench.turn(2)
    assert (bench.owned, bench.poll_loop.assignment.topics) == ([], {"foo"})
    bench.poll_loop.check_topic_ids({})
    bench.turn(2)
    assert bench.owned == []
    there = True
    bench.poll_loop.check_topic_ids({"foo": "another"})
    bench.turn(2)
    assert bench.in_hand() == [*WORDS]


def test_an_offset_map_survives_the_first_commit(
    kafka: MemoryKafka,
) -> None:
    """The next death may come before what it names has."""
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.end(b"charlie")
    bench.turn()
    bench.die()
    second = Bench(kafka, ["foo"], in_flight=1)
    second.turn(2)
    second.end(b"alpha")
    second.turn()
    assert (position(kafka), second.poll_loop.stats().remembered) == (1, 0)
    second.die()
    third = Bench(kafka, ["foo"])
    third.turn(2)
    assert third.in_hand() == [b"bravo"]


@pytest.mark.parametrize(
    "metadata",
    [
        "from another tool",
        "kworker2:AAAA",
        encode(origin_of(TopicIdentity("another cluster", "1"), ("foo", 0)), 0, [(1, 3)]),
    ],
)
def test_a_foreign_or_damaged_offset_map_is_replaced(kafka: MemoryKafka, metadata: str) -> None:
    """It names records of another topic, and those of this one would be lost."""
    kafka.group(GROUP).committed["foo", 0] = Committed(0, metadata)
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    assert bench.in_hand() == list(WORDS)
    assert bench.poll_loop.assignment.maps_ignored == 1
    bench.turn()
    assert kafka.group(GROUP).committed["foo", 0] == told(kafka, 0)


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "from another tool",
        pytest.param(
            encode(origin_of(TopicIdentity("another", "1"), ("foo", 0)), 1, []),
            id="another cluster",
        ),
        pytest.param(
            encode(origin_of(TopicIdentity("memory", "former"), ("foo", 0)), 3, []),
            id="another position",
        ),
    ],
)
def test_a_position_committed_by_another_tool_is_believed(
    kafka: MemoryKafka, metadata: str
) -> None:
    """After a reset by other tools, or a move to another cluster, it is the right one."""
    kafka.group(GROUP).committed["foo", 0] = Committed(1, metadata)
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    assert bench.in_hand() == [b"bravo", b"charlie"]
    assert bench.poll_loop.assignment.maps_ignored == (metadata == "from another tool")
    bench.turn()
    assert kafka.group(GROUP).committed["foo", 0] == told(kafka, 1)


def test_an_unchanged_position_is_committed_once(kafka: MemoryKafka) -> None:
    """Whose position it is, too, so that the brokers write nothing while nothing happens."""
    bench = Bench(kafka, ["foo"])
    bench.turn(3)
    bench.end(*WORDS)
    bench.turn(20)
    assert [commit.position for commit in kafka.history(GROUP)] == [0, 3]
    assert kafka.group(GROUP).committed["foo", 0] == told(kafka, 3)
    bench.drain()
    bench.consumer.close()
    Bench(kafka, ["foo"]).turn(20)
    assert [commit.position for commit in kafka.history(GROUP)] == [0, 3]


def make_again(kafka: MemoryKafka, *words: bytes, partitions: int = 1) -> None:
    """Its offsets are the same, and its records are others."""
    kafka.delete("foo")
    kafka.create("foo", partitions)
    for word in words:
        kafka.append("foo", value=word, key=word)


@pytest.mark.parametrize(
    "ended",
    [
        pytest.param(WORDS, id="position"),
        pytest.param((b"alpha", b"charlie"), id="position and map"),
    ],
)
@pytest.mark.parametrize("transactional", ["", "w-0"])
def test_a_new_process_ignores_positions_of_a_deleted_topic(
    kafka: MemoryKafka, ended: tuple[bytes, ...], transactional: str
) -> None:
    """A worker that had not heard of the new topic committed once more, and died."""
    bench = Bench(kafka, ["foo"], transactional=transactional)
    bench.turn(2)
    for word in ended:
        bench.end_with_result(word)
    bench.turn(4)
    stale = kafka.group(GROUP).committed["foo", 0]
    bench.die()
    make_again(kafka, *WORDS, b"delta", b"echo")
    kafka.trim("foo", 0, 1)
    kafka.group(GROUP).committed["foo", 0] = stale
    successor = Bench(kafka, ["foo"], transactional=transactional)
    successor.turn(3)
    assert successor.in_hand() == [b"bravo", b"charlie", b"delta", b"echo"]
    assert successor.poll_loop.assignment.maps_ignored == 0
    assert kafka.group(GROUP).committed["foo", 0] == told(kafka, 1)


def test_partitions_of_a_recreated_topic_are_judged_one_by_one(
    kafka: MemoryKafka,
) -> None:
    """Of one the last word is of the former topic; of another somebody has gone on since."""
    make_again(kafka, *WORDS, partitions=2)
    former = Bench(kafka, ["foo"])
    former.turn(2)
    former.end(b"alpha", b"bravo")
    former.turn()
    stale = kafka.group(GROUP).committed["foo", 0]
    former.die()
    make_again(kafka, partitions=2)
    for partition in (0, 1):
        for number in range(3):
            kafka.append("foo", partition, value=b"%d-%d" % (partition, number))
    going = Bench(kafka, ["foo"])
    going.turn(2)
    going.end(b"1-0", b"1-1")
    going.turn()
    going.die()
    kafka.group(GROUP).committed["foo", 0] = stale
    successor = Bench(kafka, ["foo"])
    successor.turn(3)
    assert successor.in_hand() == [b"0-0", b"0-1", b"0-2", b"1-2"]


def test_another_workers_progress_in_a_recreated_topic_counts(
    kafka: MemoryKafka,
) -> None:
    """Whoever hears of it later knows the former topic, and a position that is not of it."""
    late = Bench(kafka, ["foo"])
    late.turn(2)
    late.end(*WORDS)
    late.turn()
    make_again(kafka, *WORDS)
    kafka.group(GROUP).committed["foo", 0] = told(kafka, 2)
    late.consumer.expire()
    late.turn(3)
    assert late.in_hand() == [b"charlie"]


def test_a_topic_that_was_made_again_begins_at_its_beginning(kafka: MemoryKafka) -> None:
    """A position that was committed since, for the one before, would skip what is below it."""
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.end(*WORDS)
    bench.turn()
    told = kafka.identities(["foo"], 1.0)["foo"].topic_id
    assert bench.poll_loop.assignment.made_again({"foo": told}) == []
    kafka.delete("foo")
    kafka.create("foo")
    kafka.group(GROUP).committed["foo", 0] = Committed(3)
    again = (*WORDS, b"delta", b"echo")
    for word in again:
        kafka.append("foo", value=word, key=word)
    told = kafka.identities(["foo"], 1.0)["foo"].topic_id
    assert bench.poll_loop.assignment.made_again({"foo": told}) == ["foo"]
    bench.turn(3)
    assert bench.in_hand() == list(again)
    bench.turn(2)
    assert position(kafka) == 0
    assert bench.poll_loop.assignment.made_again({"foo": told}) == []


def test_a_full_offset_map_pauses_only_its_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition waits until some of its records end; then all come, none twice."""
    monkeypatch.setattr(offset_map, "MAP_BITS_MAX", 8)
    kafka = two_partitions(records=60)
    bench = Bench(kafka, ["foo"])
    bench.turn(4)
    crowded = bench.poll_loop.assignment.partitions["foo", 0]
    assert crowded in bench.poll_loop.flow.paused
    taken = [value for value in bench.in_hand() if value and value.startswith(b"0")]
    assert len(taken) == 8
    bench.turn(30)
    assert len(bench.pool.held) == 16
    assert any("foo/0 is paused" in reason for reason in bench.poll_loop.problems)
    bench.end(*taken[1:])
    bench.turn(6)
    bench.end(*taken[:1])
    while bench.pool.held:
        bench.end(*[value for value in bench.in_hand() if value is not None])
        bench.turn(4)
    assert len(bench.pool.runs) == 120
    assert len({record.source for record in bench.pool.runs}) == 120
    assert kafka.committed(GROUP) == {("foo", 0): 60, ("foo", 1): 60}
    assert bench.poll_loop.problems == []


def test_each_partition_commits_for_itself() -> None:
    """One that is stuck holds back no other."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo", 2)
    kafka.create("bar", 2)
    spread = [("foo", 0), ("foo", 1), ("bar", 1)]
    for word, at in zip(WORDS, spread, strict=True):
        kafka.append(*at, value=word, key=word)
    bench = Bench(kafka, ["foo", "bar"], retry=HOLD)
    bench.turn(2)
    bench.end(b"alpha")
    bench.fail(b"bravo")
    bench.turn()
    assert kafka.committed(GROUP) == {("foo", 0): 1, ("foo", 1): 0, ("bar", 0): 0, ("bar", 1): 0}
    bench.end(b"charlie")
    bench.turn(7)
    assert kafka.committed(GROUP)[("bar", 1)] == 1
    bench.end(b"bravo")
    bench.turn()
    assert kafka.committed(GROUP) == {("foo", 0): 1, ("foo", 1): 1, ("bar", 0): 0, ("bar", 1): 1}


def test_what_settles_early_is_committed_once_an_interval() -> None:
    """Else brokers got a commit for each batch, however long `commit_interval` is."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo")
    kafka.create(RESULTS)
    for i in range(60):
        kafka.append("foo", value=b"%d" % i, key=b"%d" % i)
    bench = Bench(kafka, ["foo"], hands=60, reports=ReportPolicy(close_at=2, every_s=0.0))
    bench.turn(2)
    before = bench.poll_loop.stats().commits
    for i in range(60):
        bench.end_with_result(b"%d" % i)
        bench.clock.now += 0.01
        bench.poll_loop.turn()
    assert bench.poll_loop.settlement.counters.done > 50
    assert 2 <= bench.poll_loop.stats().commits - before <= 4
    bench.turn(2)
    assert position(kafka) == 60


def test_with_nothing_in_flight_a_commit_waits_for_no_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drain would wait for it, also if `commit_interval` is long."""
    monkeypatch.setattr(output_batch, "PRODUCE_MOST", 1)
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo")
    kafka.create(RESULTS)
    for i in range(6):
        kafka.append("foo", value=b"%d" % i, key=b"%d" % i)
    bench = Bench(kafka, ["foo"], reports=ReportPolicy(close_at=1, every_s=0.0))
    bench.turn(2)
    for i in range(6):
        bench.end_with_result(b"%d" % i)
    bench.turn()
    for _ in range(20):
        bench.clock.now += 0.001
        bench.poll_loop.turn()
    assert position(kafka) == 6


def test_a_result_is_committed_when_it_is_written_and_not_before(kafka: MemoryKafka) -> None:
    """A broker that does not acknowledge holds the position, and nothing else."""
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.end_with_result(b"alpha")
    kafka.writable = False
    bench.turn(4)
    assert position(kafka) in (None, 0)
    kafka.writable = True
    bench.turn(4)
    assert position(kafka) == 1
    assert [raw.value() for raw in kafka.records(RESULTS)] == [b"result of alpha"]


def test_a_results_topic_that_is_missing_is_waited_for_and_said(kafka: MemoryKafka) -> None:
    """A missing topic means wait, say so, and resume."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo")
    kafka.append("foo", value=b"alpha")
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.end_with_result(b"alpha")
    bench.turn(8)
    assert position(kafka) in (None, 0)
    assert any("results" in reason for reason in bench.poll_loop.problems)
    kafka.create(RESULTS)
    bench.turn(8)
    assert position(kafka) == 1
    assert bench.poll_loop.problems == []


def test_a_gap_at_the_end_is_committed_over(kafka: MemoryKafka) -> None:
    """Markers of transactions: else the lag never reaches zero."""
    kafka.skip("foo", 0, 2)
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.end(*WORDS)
    bench.turn(2)
    assert position(kafka) == 5


def test_a_commit_that_the_broker_did_not_take_is_sent_again(kafka: MemoryKafka) -> None:
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    kafka.up = False
    bench.end(*WORDS)
    bench.turn(3)
    kafka.up = True
    bench.turn(2)
    assert position(kafka) == 3
    assert bench.poll_loop.idle


def test_what_settles_during_a_commit_is_committed_after_it(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: a crash within the next commit interval would repeat it."""
    bench = Bench(kafka, ["foo"])
    bench.turn(3)
    with monkeypatch.context() as slow:
        slow.setattr(bench.poll_loop.committer, "answered", lambda _: None)
        bench.end(b"alpha")
        bench.turn()
        bench.end(b"bravo")
        bench.turn()
        assert position(kafka) == 1
    bench.poll_loop.committer.answered(None)
    bench.poll_loop.turn()  # the interval is not over
    assert position(kafka) == 2


def test_a_drain_ends_what_has_begun_and_leaves_the_rest(kafka: MemoryKafka) -> None:
    """A drain finishes what is in hand; the next start takes the rest."""
    bench = Bench(kafka, ["foo"], hands=2)
    bench.turn(2)
    bench.drain()
    assert [r.raw.value() for r in bench.pool.runs] == [b"alpha", b"bravo"]
    assert position(kafka) == 2


def test_a_drain_does_not_wait_for_a_record_that_fails(kafka: MemoryKafka) -> None:
    """What waits for its time does not make it a drain that timed out."""
    bench = Bench(kafka, ["foo"], retry=HOLD)
    bench.turn(2)
    bench.fail(b"alpha")
    bench.turn()
    bench.drain()
    assert bench.clock.now < 1020
    assert position(kafka) in (None, 0)


def test_a_record_that_fails_during_the_drain_is_left(kafka: MemoryKafka) -> None:
    bench = Bench(kafka, ["foo"], hands=1, retry=HOLD)
    bench.turn(2)
    bench.poll_loop.stop_taking()
    bench.fail(b"alpha")
    bench.turn(2)
    assert bench.poll_loop.idle


def test_nothing_is_taken_while_draining(kafka: MemoryKafka) -> None:
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.poll_loop.stop_taking()
    kafka.append("foo", value=b"delta")
    bench.turn(6)
    assert b"delta" not in bench.in_hand()
    bench.drain()
    assert position(kafka) == 3


def test_records_delivered_late_in_a_drain_neither_run_nor_skip(
    kafka: MemoryKafka,
) -> None:
    """The end that comes behind it is then not the end of what was delivered."""
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.end(*WORDS)
    bench.turn()
    bench.poll_loop.stop_taking()
    offset = kafka.append("foo", value=b"delta")
    end = Event(("foo", 0), offset + 1, KafkaError(KafkaError._PARTITION_EOF))
    bench.turn(2)
    bench.consumer.late = [kafka.records("foo")[-1], end]
    bench.turn(3)
    assert bench.in_hand() == []
    assert position(kafka) == 3


def test_records_in_hand_never_exceed_in_flight() -> None:
    """The limit holds while all of a backlog gets its turn."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo", 3)
    for i in range(300):
        kafka.append("foo", i % 3, value=b"%d" % i)
    bench = Bench(kafka, ["foo"], hands=4, in_flight=10)
    most = 0
    while len(bench.pool.runs) < 300:
        bench.turn()
        most = max(most, bench.poll_loop.flow.records)
        for record in list(bench.pool.held):
            bench.pool.end(record)
        assert bench.clock.now < 2000
    assert most == 10


def test_a_gap_stops_its_partition_and_no_other() -> None:
    """A committed offset has expired: the reason names the gap, and a person decides."""
    kafka = two_partitions()
    first = Bench(kafka, ["foo"])
    first.turn(2)
    first.end(b"0-0", b"1-0")
    first.turn()
    first.die()
    kafka.trim("foo", 0, 3)
    bench = Bench(kafka, ["foo"])
    bench.turn(4)
    assert bench.in_hand() == [b"1-1", b"1-2", b"1-3"]
    [reason] = bench.poll_loop.problems
    assert "foo/0 stopped" in reason
    assert "would be 1" in reason
    assert "3 to 4" in reason


LOST = "foo/0 stopped: the group had a position there and has none now; the partition now holds"


def test_a_position_that_vanishes_stops_its_partition(kafka: MemoryKafka) -> None:
    """At the next rebalance: to begin at the beginning would do all of it again, unsaid."""
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.end(*WORDS)
    bench.turn(2)
    assert position(kafka) == 3
    del kafka.group(GROUP).committed["foo", 0]
    bench.consumer.expire()
    bench.turn(4)
    assert bench.in_hand() == []
    [reason] = bench.poll_loop.problems
    assert reason.startswith(f"{LOST} 0 to 3; `kworker offsets reset` decides where to go on")
    assert ("foo", 0) not in kafka.group(GROUP).committed


@pytest.mark.parametrize("topic_id", ["", "1", "former"])
def test_a_noted_position_that_is_gone_stops_its_partition(
    kafka: MemoryKafka, topic_id: str
) -> None:
    """Deleted or expired while nothing ran; but a topic that was made again never had one."""
    [identity] = kafka.identities(["foo"], 1.0).values()
    same = identity.topic_id if topic_id == "1" else topic_id
    bench = Bench(kafka, ["foo"], had={("foo", 0): same})
    bench.turn(3)
    stands = topic_id != "former"
    assert bench.in_hand() == ([] if stands else list(WORDS))
    assert [reason.startswith(LOST) for reason in bench.poll_loop.problems] == [True] * stands


def test_a_stopped_partition_is_told_of_after_a_rebalance() -> None:
    """A cooperative rebalance gives it nothing anew, so nobody would tell again."""
    kafka = two_partitions()
    bench = Bench(kafka, ["foo"], had={("foo", 0): ""})
    bench.turn(3)
    [before] = bench.poll_loop.problems
    bench.poll_loop.assignment.revoked([("foo", 1)])
    bench.poll_loop.assignment.assigned([("foo", 1)])
    bench.turn(2)
    assert bench.poll_loop.problems == [before]


def test_a_full_partition_pauses_only_while_others_have_records(
    kafka: MemoryKafka,
) -> None:
    """The brokers tell who has records; at the end of a topic nobody waits for anybody."""
    kafka.create("bar", partitions=2)
    bench = Bench(kafka, ["foo", "bar"], in_flight=4)
    bench.turn(8)
    over = bench.poll_loop.assignment.partitions["foo", 0]
    assert bench.poll_loop.flow.paused == set()
    bench.poll_loop.take_end_offsets({("bar", 0): 9})
    bench.turn(16)
    assert bench.poll_loop.flow.paused == {over}


def test_a_producer_gets_time_to_answer_after_an_outage(
    kafka: MemoryKafka,
) -> None:
    """Another would write again what is acknowledged in a moment."""
    kafka.create(RESULTS)
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    kafka.up = False
    bench.end_with_result(b"alpha")
    bench.turn(8)
    for answer in ({}, {("foo", 0): 3}, {("foo", 0): 3}):
        bench.clock.now += 10.0
        bench.poll_loop.take_end_offsets(answer)
        assert not any("though the brokers answer" in why for why in bench.poll_loop.problems)
    bench.clock.now += 10.0
    bench.poll_loop.take_end_offsets({("foo", 0): 3})
    bench.turn()
    assert any("though the brokers answer" in why for why in bench.poll_loop.problems)


def test_a_missing_topic_is_reported_until_it_exists(kafka: MemoryKafka) -> None:
    bench = Bench(kafka, ["foo", "later"])
    bench.turn(2)
    assert any("later" in reason for reason in bench.poll_loop.problems)
    assert bench.in_hand() == list(WORDS)
    kafka.create("later")
    kafka.append("later", value=b"zulu")
    bench.end(*WORDS)
    bench.turn(5)
    assert bench.in_hand() == [b"zulu"]
    assert bench.poll_loop.problems == []


def test_a_fenced_static_member_ends(kafka: MemoryKafka) -> None:
    """Two members share one static identity: the older one exits with a clear reason."""
    older = Bench(kafka, ["foo"], static="host-0")
    older.turn(2)
    newer = Bench(kafka, ["foo"], static="host-0")
    newer.turn(2)
    with pytest.raises(Fenced):
        older.turn()
    assert newer.in_hand() == list(WORDS)


def test_a_failed_record_is_not_published_or_counted_done(kafka: MemoryKafka) -> None:
    bench = Bench(kafka, ["foo"], retry=HOLD)
    bench.turn(2)
    bench.pool.end(bench.holds(b"alpha"), Failed(KeyError("x")))
    bench.end(b"bravo")
    bench.turn()
    assert (bench.poll_loop.settlement.counters.done, bench.poll_loop.dispatch.endings.failed) == (
        1,
        1,
    )
    assert bench.poll_loop.in_hand == 2


def test_a_stamp_before_1970_is_no_age() -> None:
    """Brokers take them (measured); the age of such a record has no room in a word."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo")
    kafka.create(RESULTS)
    kafka.append("foo", value=b"a", timestamp=-(2**62))
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    [partition] = [p for p in bench.poll_loop.assignment.partitions.values() if p.topic == "foo"]
    assert partition.ledger.oldest_ms() is None


def test_a_topic_readable_again_is_no_problem_any_more(kafka: MemoryKafka) -> None:
    """As when a right was granted: no rebalance comes of it."""
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    bench.consumer._events.append(Event(("foo", 0), -1, refused))
    bench.turn()
    assert [reason.startswith("cannot read foo") for reason in bench.poll_loop.problems] == [True]
    kafka.append("foo", value=b"delta")
    bench.turn()
    assert bench.poll_loop.problems == []


def test_a_topic_that_is_back_is_no_problem_where_others_read_it(kafka: MemoryKafka) -> None:
    """The client tells all of its end, and only its readers of its return."""
    benches = [Bench(kafka, ["foo"]), Bench(kafka, ["foo"])]
    take_turns(*benches)
    kafka.delete("foo")
    take_turns(*benches)
    assert [len(bench.poll_loop.problems) for bench in benches] == [1, 1]
    kafka.create("foo")
    take_turns(*benches)
    [reader] = [bench for bench in benches if bench.owned]
    [other] = [bench for bench in benches if not bench.owned]
    assert reader.poll_loop.problems == []
    assert other.poll_loop.topics_to_check == {"foo"}
    other.poll_loop.check_topic_ids({"foo": "id"})
    assert other.poll_loop.problems == []


def test_a_missing_topic_stays_a_problem_after_an_old_answer(kafka: MemoryKafka) -> None:
    """The client does not tell a second time, and a broker may be late to know."""
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    kafka.delete("foo")
    bench.turn(4)
    for told in ({"foo": "id", RESULTS: "id"}, {RESULTS: "id"}, {}):
        bench.poll_loop.check_topic_ids(told)
        bench.turn()
    [reason] = bench.poll_loop.problems
    assert reason.startswith("cannot read foo")


def test_a_pattern_that_matches_again_is_no_problem(kafka: MemoryKafka) -> None:
    """Its problem bears the pattern's name, and no topic has that."""
    bench = Bench(kafka, ["^fo+$"])
    bench.turn(2)
    kafka.delete("foo")
    bench.turn(4)
    assert [reason.startswith("cannot read ^fo+$") for reason in bench.poll_loop.problems] == [True]
    kafka.create("foo")
    bench.turn(4)
    assert (bench.owned, bench.poll_loop.problems) == ([("foo", 0)], [])


def test_a_refused_result_is_no_problem_after_its_revoke(kafka: MemoryKafka) -> None:
    """Another worker publishes it, and has the trouble, if there still is one."""
    bench = Bench(kafka, ["foo"], transactional="orders-0")
    bench.turn(2)
    kafka.delete(RESULTS)
    bench.end_with_result(b"alpha")
    bench.turn(4)
    assert any(RESULTS in reason for reason in bench.poll_loop.problems)
    bench.consumer.close()
    bench.turn(4)
    assert bench.poll_loop.problems == []


def test_a_worker_without_partitions_reports_an_outage(kafka: MemoryKafka) -> None:
    """It asks for no ends of partitions, from which the others know."""
    bench = Bench(kafka, [])
    [slot] = Scoreboard(1, 1).slots
    watch = Watching()
    telling = StatusReporter(slot, bench.poll_loop, watch, TopicLimits([RESULTS]))  # type: ignore[arg-type]
    for told in ({RESULTS: "id"}, {}, {RESULTS: "id"}):
        watch.told = told
        telling._lag_at = telling._tell_at = 0.0
        telling.turn()
        assert watch.asked == {RESULTS}
        telling._tell_at = 0.0
        telling.turn()
        assert ["no broker answers" in reason for reason in bench.poll_loop.problems] == [True] * (
            not told
        )


def test_a_worker_without_partitions_asks_for_a_missing_topic(kafka: MemoryKafka) -> None:
    """Beside those that exist, so that no answer about it is not taken for an outage."""
    bench = Bench(kafka, ["bar"])
    bench.turn(2)
    [slot] = Scoreboard(1, 1).slots
    watch = Watching()
    telling = StatusReporter(slot, bench.poll_loop, watch, TopicLimits([RESULTS]))  # type: ignore[arg-type]
    telling.turn()
    assert watch.asked == {RESULTS, "bar"}


def test_brokers_that_turn_a_worker_away_are_told_as_that(kafka: MemoryKafka) -> None:
    """A password that has changed is no outage, and waiting does not help."""
    bench = Bench(kafka, [])
    bench.poll_loop.note_brokers(answer=False, rejection="kafka.sasl.password: refused")
    assert bench.poll_loop.problems == ["kafka.sasl.password: refused"]
    bench.poll_loop.take_end_offsets({}, "kafka.sasl.password: refused again")
    assert bench.poll_loop.problems == ["kafka.sasl.password: refused again"]
    bench.poll_loop.note_brokers(answer=True)
    assert bench.poll_loop.problems == []


class Watching:
    """What `KafkaWatch` would be asked and told of topics, and of nothing else."""

    rejection = ""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.asked: set[str] | None = None

    def ask_ends(self, partitions: Iterable[PartitionId]) -> None:
        assert not list(partitions)

    def ask_ids(self, topics: Iterable[str]) -> None:
        self.asked = set(topics)

    def ask_facts(self, topics: Iterable[str]) -> None:
        """Nobody answers."""

    def ends(self) -> None:
        return None

    def facts(self) -> None:
        return None

    def ids(self) -> dict[str, str] | None:
        return None if self.asked is None else self.told
