"""The delay process's loop over the twin: on a clock of the test's own, whatever goes wrong."""

from collections import Counter
from typing import Any

import pytest

from kworker.clients.errors import Fenced, KafkaRequestError
from kworker.clients.memory.broker import MemoryKafka
from kworker.clients.memory.transactor import MemoryTransactor
from kworker.core.message import Headers
from kworker.core.offset_map import Committed
from kworker.delay.partitions import HoldPolicy
from tests.support.delay_rig import (
    DEAD,
    DELAYS_MS,
    PATTERN,
    REQUEUE,
    Clocks,
    DelayBench,
    Member,
    broker,
    headers,
    values,
    wait,
)
from tests.support.records import unheard

SECOND, TEN, MINUTE = "orders.retry.1s", "orders.retry.10s", "orders.retry.1m"
HOUR_MS = 3_600_000


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def kafka(clocks: Clocks) -> MemoryKafka:
    return broker(clocks)


@pytest.fixture
def bench(kafka: MemoryKafka, clocks: Clocks) -> DelayBench:
    made = DelayBench(kafka, clocks)
    made.turns()
    return made


def texts(kafka: MemoryKafka, topic: str = REQUEUE) -> list[str]:
    return sorted((value.decode() for value in values(kafka, topic)), key=int)


def numbers(*ranges: range) -> list[str]:
    return [str(number) for each in ranges for number in each]


def test_records_wait_their_delay_and_go_together(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """One transaction forwards a run, so that thousands cost few."""
    wait(kafka, clocks, SECOND, *range(100))
    before = bench.loop.transactions
    bench.run(950)
    assert texts(kafka) == []
    bench.run(150)
    assert texts(kafka) == numbers(range(100))
    assert bench.loop.transactions == before + 1
    assert kafka.committed("orders.delay")[SECOND, 0] == 100


def test_a_record_goes_where_its_source_is(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """Whatever partition of the delay topic it waited in."""
    due = headers(7, clocks.wall_ms, partition=5)
    kafka.append(SECOND, 0, value=b"7", headers=due)
    bench.run(1_200)
    [record] = kafka.records(REQUEUE)
    assert record.partition() == 5 % 2


def test_the_rest_of_a_delay_is_spent_in_further_hops(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """12 s: first ten, then two times one; never early."""
    wait(kafka, clocks, TEN, 1, after_ms=12_000)
    bench.run(11_950)
    assert texts(kafka) == []
    bench.run(300)
    assert texts(kafka) == ["1"]
    assert len(kafka.records(SECOND)) == 2


def test_waiting_records_are_counted_by_delay(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    wait(kafka, clocks, TEN, 1, 2)
    first_ms = clocks.wall_ms + 10_000
    bench.turns()
    wait(kafka, clocks, TEN, 3, partition=1)
    bench.turns()
    assert bench.loop.waiting() == {SECOND: (0, None), TEN: (3, first_ms)}


def test_thousands_wait_in_kafka_and_all_of_them_go(kafka: MemoryKafka, clocks: Clocks) -> None:
    """Paused at the head; what was not taken yet counts as waiting."""
    bench = DelayBench(kafka, clocks, hold=HoldPolicy(records_max=400, bytes_max=1 << 30))
    bench.turns()
    wait(kafka, clocks, TEN, *range(5_000))
    bench.run(5_000)
    held = len(bench.assignment.partitions[TEN, 0].held)
    assert held < 1_000
    assert bench.consumer.paused == {(TEN, 0)}
    assert bench.loop.waiting()[TEN][0] == 5_000
    bench.run(5_500)
    assert texts(kafka) == numbers(range(5_000))
    assert bench.consumer.handed == 5_000
    assert bench.consumer.paused == set()
    assert bench.loop.waiting()[TEN][0] == 0


def test_due_times_survive_a_restart(kafka: MemoryKafka, clocks: Clocks, bench: DelayBench) -> None:
    """Positions are committed only with what is forwarded, so what was held is held again."""
    wait(kafka, clocks, TEN, *range(10))
    bench.run(6_000)
    bench.die()
    successor = DelayBench(kafka, clocks)
    successor.run(3_900)
    assert texts(kafka) == []
    successor.run(400)
    assert texts(kafka) == numbers(range(10))


def test_due_times_survive_a_rebalance(
    kafka: MemoryKafka, clocks: Clocks, bench: DelayBench
) -> None:
    """Another host's process joins while thousands wait, and leaves again."""
    for partition in (0, 1):
        wait(kafka, clocks, TEN, *range(partition * 50, 50 + partition * 50), partition=partition)
    bench.run(3_000)
    other = DelayBench(kafka, clocks, name="another-host")
    for _ in range(100):
        bench.turns(1)
        other.turns(1)
    assert len(other.assignment.partitions) == 2
    assert len(bench.assignment.partitions) == 2
    assert texts(kafka) == []
    other.die()
    bench.run(5_000)
    assert texts(kafka) == numbers(range(100))


@pytest.mark.parametrize("though_committed", [True, False])
def test_a_forward_in_doubt_is_looked_up_and_goes_once(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks, though_committed: bool
) -> None:
    """The committed positions alone tell what was forwarded."""
    wait(kafka, clocks, SECOND, *range(50))
    wait(kafka, clocks, SECOND, *range(50, 100), partition=1)
    bench.fail_next_commit(though_committed=though_committed)
    bench.run(5_000)
    assert bench.doubt is None, "an invalid run"
    assert texts(kafka) == numbers(range(100))
    assert bench.loop.problems == []


@pytest.mark.parametrize("though_committed", [True, False])
def test_a_kill_between_forward_and_commit_forwards_once(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks, though_committed: bool
) -> None:
    """A duplicate here would fork the whole chain of attempts."""
    wait(kafka, clocks, SECOND, *range(50))
    bench.fail_next_commit(though_committed=though_committed)
    while bench.doubt is not None:
        bench.turns(1)
    bench.die()
    DelayBench(kafka, clocks).run(2_000)
    assert texts(kafka) == numbers(range(50))


def test_a_rebalance_after_an_in_doubt_forward_finds_positions(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """Until it is aborted, the transaction hides them from the assignment that waits for them."""
    wait(kafka, clocks, SECOND, *range(50))
    bench.run(500)
    metadata = bench.consumer.group_metadata()
    left = bench.forwarder._transactor
    assert left is not None
    left.begin()
    left.send_positions({(SECOND, 0): Committed(50)}, metadata)
    bench.forwarder._opened = False
    bench.forwarder._transactor = None
    with pytest.raises(KafkaRequestError):
        bench.consumer.positions([(SECOND, 0)], 1.0)
    kafka.create(MINUTE, 2)
    bench.run(3_000)
    assert (MINUTE, 0) in bench.assignment.partitions
    assert texts(kafka) == numbers(range(50))


def test_a_wait_for_hidden_positions_is_reported(kafka: MemoryKafka, clocks: Clocks) -> None:
    """The wait takes place inside a turn, for as long as it lasts."""
    kafka.group("orders.delay").pending["another-delay"] = {(SECOND, 0): Committed(1)}
    told: list[str] = []

    def meanwhile() -> bool:
        if reasons := bench.loop.problems:
            told.extend(reasons)
            kafka.group("orders.delay").pending.clear()
        return True

    bench = DelayBench(kafka, clocks, waits=meanwhile)
    bench.turns()
    [reason] = set(told)
    assert reason.startswith(f"the committed position of {SECOND}/0 is hidden by a transaction")
    assert bench.assignment.partitions.keys() >= {(SECOND, 0), (SECOND, 1)}
    assert bench.loop.problems == []


def test_a_stopping_delay_process_begins_no_hidden_partition(
    kafka: MemoryKafka, clocks: Clocks
) -> None:
    kafka.group("orders.delay").pending["another-delay"] = {(SECOND, 0): Committed(1)}
    bench = DelayBench(kafka, clocks, waits=lambda: False)
    bench.turns()
    assert bench.assignment.partitions == {}


def test_a_resolved_in_doubt_commit_leaves_no_problem(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """It stayed red until the next record of that partition, for minutes or for days."""
    wait(kafka, clocks, SECOND, 1)
    bench.fail_next_commit(though_committed=True)
    bench.run(4_000)
    assert bench.doubt is None
    assert texts(kafka) == ["1"]
    assert bench.loop.problems == []


def test_without_a_delay_topic_there_is_no_group_to_join(
    kafka: MemoryKafka, clocks: Clocks
) -> None:
    """The client joins for topics that exist; a service without retries would be red."""
    kafka.coordinated = False
    idle = DelayBench(kafka, clocks, delays={})
    idle.run(20_000, 250)
    assert idle.loop.problems == []
    assert idle.loop.membership.is_member


def test_a_delay_process_without_a_group_answer_joins_anew(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """Due records wait, and nothing else tells why."""
    kafka.coordinated = False
    bench.run(20_000, 250)
    assert any(why.startswith("not a member of the group") for why in bench.loop.problems)
    kafka.coordinated = True
    bench.run(500)
    absent = DelayBench(kafka, clocks, name="another-host")
    wait(kafka, clocks, SECOND, 1)
    bench.run(500)
    kafka.group("orders.delay").rebalance()  # for which the other one does not come back
    before = bench.consumer._member
    bench.run(70_000, 250)
    assert bench.consumer._member is not before
    absent.die()
    bench.run(3_000)
    assert bench.loop.problems == []
    assert texts(kafka) == ["1"]


def test_a_zombie_forwards_nothing(bench: DelayBench, kafka: MemoryKafka, clocks: Clocks) -> None:
    """Stopped for longer than its session, it wakes with due records in its hand."""
    wait(kafka, clocks, SECOND, *range(50))
    bench.run(500)
    bench.consumer.expire()
    other = DelayBench(kafka, clocks, name="another-host")
    other.run(2_000)
    assert texts(kafka) == numbers(range(50))
    bench.loop._forward(clocks.now_s)
    assert texts(kafka) == numbers(range(50))


def test_a_kafka_outage_is_reported_and_waited_for(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    wait(kafka, clocks, SECOND, *range(20))
    kafka.up = False
    bench.run(5_000)
    assert bench.loop.problems
    kafka.up = True
    bench.run(4_000)
    assert texts(kafka) == numbers(range(20))
    assert bench.loop.problems == []


def test_without_requeue_what_is_due_waits_and_the_rest_goes_on(clocks: Clocks) -> None:
    """A missing requeue topic means wait, not exit; a forged record does not need it."""
    kafka = MemoryKafka(lambda: clocks.wall_ms / 1000)
    for topic in (*DELAYS_MS, DEAD):
        kafka.create(topic, 2)
    bench = DelayBench(kafka, clocks)
    bench.turns()
    wait(kafka, clocks, SECOND, 1)
    kafka.append(SECOND, 1, value=b"2")
    bench.run(3_000)
    assert values(kafka, DEAD) == [b"2"]
    assert bench.loop.problems == [f"{REQUEUE} does not exist; due records wait"]
    kafka.create(REQUEUE, 2)
    bench.run(5_000)
    assert texts(kafka) == ["1"]
    assert bench.loop.problems == []


def test_a_refused_record_holds_back_only_its_own_partition(
    kafka: MemoryKafka, clocks: Clocks
) -> None:
    """It fails every transaction that it is in, so it is tried alone."""
    topic = kafka.topic(REQUEUE)
    assert topic
    topic.max_message_bytes = 700  # as an operator may have it
    bench = DelayBench(kafka, clocks)
    bench.turns(2)
    kafka.append(SECOND, 0, value=b"x" * 1_000, headers=headers(0, clocks.wall_ms))
    wait(kafka, clocks, SECOND, 1)  # behind it
    wait(kafka, clocks, SECOND, *range(2, 20), partition=1)
    bench.run(4_500)
    assert texts(kafka) == numbers(range(2, 20))
    [reason] = [reason for reason in bench.loop.problems if "large" in reason]
    assert reason.startswith("refused: ")
    assert kafka.committed("orders.delay")[SECOND, 1] == 18
    bench.consumer.unsubscribe()
    bench.turns()
    assert bench.loop.problems == []  # it is another's now


@pytest.mark.parametrize("bad", [1, 2])
def test_records_due_later_pass_partitions_that_stay_refused(
    kafka: MemoryKafka, clocks: Clocks, bad: int
) -> None:
    """Each refusal takes the producer from all, by then for as long as a partition rests."""
    topic = kafka.topic(REQUEUE)
    assert topic
    topic.max_message_bytes = 700
    bench = DelayBench(kafka, clocks)
    bench.turns(2)
    for partition in range(bad):
        due = headers(0, clocks.wall_ms, partition=partition)
        kafka.append(SECOND, partition, value=b"x" * 1_000, headers=due)
    wait(kafka, clocks, TEN, *range(20), partition=1)
    bench.run(13_000)
    assert texts(kafka) == numbers(range(20))
    assert any("large" in reason for reason in bench.loop.problems), "an invalid run"


@pytest.mark.parametrize(
    ("size", "own", "value", "says"),
    [
        (1_000, (("a", b"x" * 200),), b"x" * 1_000, "the header kworker-source is missing"),
        (1_000, (("a", b"x" * 1_000),), b"x" * 1_000, "headers have no room in the dead-letter"),
        (1_900, (), None, f"no room in the dead-letter topic and stays at {SECOND}/0/0"),
    ],
)
def test_a_strangers_dead_letter_has_what_there_is_room_for(
    kafka: MemoryKafka,
    clocks: Clocks,
    size: int,
    own: Headers,
    value: bytes | None,
    says: str,
) -> None:
    """Its partition would stand still for ever: no transaction with the record is accepted."""
    topic = kafka.topic(DEAD)
    assert topic
    topic.max_message_bytes = 2_000
    bench = DelayBench(kafka, clocks)
    bench.turns(2)
    kafka.append(SECOND, 0, value=b"x" * size, headers=own)
    wait(kafka, clocks, SECOND, 1)  # behind it
    bench.run(3_000)
    assert texts(kafka) == ["1"]
    [dead] = kafka.records(DEAD)
    assert dead.value() == value
    assert says in (dict(dead.headers() or ())["kworker-message"] or b"").decode()
    assert bench.loop.problems == []


def test_a_retired_delay_is_emptied_and_not_filled_again(clocks: Clocks) -> None:
    """Its records go on by the delays that are left."""
    kafka = broker(clocks)
    kafka.create(MINUTE, 2)
    bench = DelayBench(kafka, clocks)  # whose delays are 1 s and 10 s
    bench.turns()
    wait(kafka, clocks, MINUTE, 1)
    wait(kafka, clocks, MINUTE, 2, after_ms=70_500)
    assert bench.loop.waiting()[MINUTE] == (0, None)
    bench.run(60_500)
    assert texts(kafka) == ["1"]
    bench.run(12_000)
    assert texts(kafka) == ["1", "2"]
    assert len(kafka.records(MINUTE)) == 2


def test_a_delay_that_is_new_is_found(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    kafka.create(MINUTE, 2)
    wait(kafka, clocks, MINUTE, 1)
    bench.run(60_500)
    assert texts(kafka) == ["1"]


def test_an_empty_list_of_delays_is_no_problem(clocks: Clocks) -> None:
    """`delays = []` has no topic, and a service that has none must not be red for ever."""
    kafka = MemoryKafka(lambda: clocks.wall_ms / 1000)
    for topic in (REQUEUE, DEAD):
        kafka.create(topic, 2)
    bench = DelayBench(kafka, clocks)
    bench.run(5_000)
    assert bench.loop.assignment.joined
    assert bench.loop.problems == []
    kafka.create(SECOND, 2)
    wait(kafka, clocks, SECOND, 1)
    bench.run(1_200)
    assert texts(kafka) == ["1"]


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
def test_due_times_survive_clock_jumps_without_a_busy_loop(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks, jump_ms: int
) -> None:
    """Nor does what is written after an hour back wait for what was written before."""
    due_ms = dict.fromkeys(range(5), clocks.wall_ms + 1000)
    wait(kafka, clocks, SECOND, *range(5))
    bench.run(300)
    clocks.wall_ms += jump_ms
    due_ms |= dict.fromkeys(range(5, 10), clocks.wall_ms + 1000)
    wait(kafka, clocks, SECOND, *range(5, 10))
    before = bench.loop.transactions
    bench.run(8_000)
    went = {int(record.value() or b""): record.timestamp()[1] for record in kafka.records(REQUEUE)}
    assert all(went[number] >= due_ms[number] for number in went)
    assert set(went) >= set(range(5, 10))
    assert (set(went) == set(range(10))) is (jump_ms > 0)
    assert bench.loop.transactions - before < 20
    bench.run(HOUR_MS + 20_000, step_ms=1_000)
    assert texts(kafka) == numbers(range(10))


def test_very_old_and_future_records_wait_by_their_due_time(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """Written 15 days ago, or by a clock two hours ahead: the due time decides."""
    old, ahead = clocks.wall_ms - 15 * 24 * HOUR_MS, clocks.wall_ms + 2 * HOUR_MS
    kafka.append(SECOND, 0, value=b"1", timestamp=ahead, headers=headers(1, clocks.wall_ms + 1_000))
    kafka.append(SECOND, 0, value=b"2", timestamp=old, headers=headers(2, old + 1_000))
    bench.run(10_000)
    assert texts(kafka) == ["1", "2"]


def test_forged_records_are_told_and_counted(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record that is given up is counted and logged."""
    kafka.append(SECOND, 0, value=b"1", headers=(("kworker-source", b"nonsense"),))
    wait(kafka, clocks, SECOND, 2)
    bench.run(1_500)
    assert (values(kafka, DEAD), texts(kafka)) == ([b"1"], ["2"])
    assert bench.loop.dead == 1
    said = capsys.readouterr().out
    assert "dead letter" in said
    assert f"{SECOND}:0:0" in said


def test_unreadable_headers_in_a_delay_topic_kill_one_record(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks, capsys: pytest.CaptureFixture[str]
) -> None:
    """The delay process ended at such a record, again and again."""
    unheard(kafka, SECOND, 0, key=b"\xff", value=b"1")
    wait(kafka, clocks, SECOND, 2)
    bench.run(1_500)
    assert texts(kafka) == ["2"]
    [dead] = kafka.records(DEAD)
    told = dict(dead.headers() or ())
    assert (dead.key(), dead.value(), told["kworker-reason"]) == (b"\xff", b"1", b"unreadable")
    assert (told["kworker-message"] or b"").startswith(b"its headers cannot be read and are not")
    assert bench.loop.dead == 1
    assert "becomes a dead letter (unreadable)" in capsys.readouterr().out


def test_an_emptied_delay_partition_shows_no_lag(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """Markers of transactions are no records, but lag tools count them."""
    wait(kafka, clocks, SECOND, 1)
    kafka.skip(SECOND, 0, 3)
    bench.run(6_000)
    assert kafka.committed("orders.delay")[SECOND, 0] == kafka.log((SECOND, 0)).high
    before = bench.loop.transactions
    bench.run(20_000)
    assert bench.loop.transactions == before


def test_records_deleted_unread_stop_their_partition(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    wait(kafka, clocks, SECOND, 0)
    bench.run(1_500)
    bench.die()
    wait(kafka, clocks, SECOND, *range(1, 6))
    kafka.trim(SECOND, 0, 4)
    kafka.group("orders.delay").committed[SECOND, 0] = Committed(1)
    successor = DelayBench(kafka, clocks)
    wait(kafka, clocks, SECOND, 9, partition=1)
    successor.run(3_000)
    assert texts(kafka) == ["0", "9"]
    [reason] = successor.loop.problems
    assert f"{SECOND}/0 stopped: its next record would be 1" in reason
    assert "4 to 6" in reason
    successor.assignment.revoked([(SECOND, 1)])  # as in a cooperative rebalance: the other stays
    successor.assignment.assigned([(SECOND, 1)])
    assert successor.loop.problems == [reason]


def test_a_fenced_delay_process_ends(bench: DelayBench, kafka: MemoryKafka) -> None:
    """Two of one name would fence each other for ever."""
    bench.turns()
    properties: dict[str, Any] = {"group.id": "orders.delay", "group.instance.id": "delay"}
    Member(kafka, properties, bench.assignment).subscribe([PATTERN])
    with pytest.raises(Fenced):
        bench.turns()


def by_a_stranger(kafka: MemoryKafka) -> MemoryTransactor:
    """Somebody else's init_transactions."""
    stranger = MemoryTransactor(kafka, {}, "delay", 1.0)
    stranger.open()
    return stranger


def test_a_stolen_transactional_id_is_taken_back(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """As often as it takes it, but ever more slowly: what waits here can wait a little longer."""
    bench.turns()
    for number in range(12):
        wait(kafka, clocks, SECOND, number)
        by_a_stranger(kafka)
        bench.run(1_200)
        assert any("took the transactional id delay" in reason for reason in bench.loop.problems)
        bench.run(31_000)
        assert texts(kafka) == [str(each) for each in range(number + 1)]
        assert bench.loop.problems == []


def test_the_newer_of_two_with_one_transactional_id_ends(
    kafka: MemoryKafka, clocks: Clocks
) -> None:
    """Of two copies of a service with dynamic workers, only this tells them of each other."""
    young = DelayBench(kafka, clocks, began=clocks.now_s)
    young.turns()
    wait(kafka, clocks, SECOND, 1)
    by_a_stranger(kafka)
    young.run(4_000)
    assert texts(kafka) == ["1"]
    wait(kafka, clocks, SECOND, 2)
    by_a_stranger(kafka)
    with pytest.raises(Fenced, match="times in the first"):
        young.run(4_000)


def test_a_former_member_does_not_take_its_id_back(
    bench: DelayBench, kafka: MemoryKafka, clocks: Clocks
) -> None:
    """The stranger that took the id may own its partitions, too."""
    bench.turns()
    wait(kafka, clocks, SECOND, 1)
    stranger = by_a_stranger(kafka)
    bench.run(1_100)
    bench.consumer.expire()
    held, bench.assignment.poll = bench.assignment.poll, lambda *_: 0  # type: ignore[method-assign]
    bench.run(40_000)
    assert kafka.installed("delay") is stranger
    bench.assignment.poll = held  # type: ignore[method-assign]
    bench.run(2_000)
    assert texts(kafka) == ["1"]


def test_every_record_goes_once_whatever_happens_meanwhile(
    kafka: MemoryKafka, clocks: Clocks
) -> None:
    """Doubts, outages, restarts and rebalances, one after the other, while thousands wait."""
    bench = DelayBench(kafka, clocks, hold=HoldPolicy(records_max=100, bytes_max=1 << 30))
    due_ms: dict[int, int] = {}
    for turn in range(40):
        first = turn * 50
        for topic, partition in ((SECOND, turn % 2), (TEN, turn % 2)):
            mine = range(first + (topic == TEN) * 25, first + (topic == TEN) * 25 + 25)
            wait(kafka, clocks, topic, *mine, partition=partition)
            due_ms.update(dict.fromkeys(mine, clocks.wall_ms + DELAYS_MS[topic]))
        match turn % 5:
            case 0:
                bench.fail_next_commit(though_committed=turn % 2 == 0)
            case 1:
                bench.die()
                bench = DelayBench(kafka, clocks, hold=HoldPolicy(100, 1 << 30))
            case 2:
                kafka.up = False
            case 3:
                kafka.up = True
        bench.run(700)
    bench.run(20_000)
    went = [(int(r.value() or b""), r.timestamp()[1]) for r in kafka.records(REQUEUE)]
    assert Counter(number for number, _ in went) == Counter(range(2_000))
    assert all(at_ms >= due_ms[number] for number, at_ms in went)
