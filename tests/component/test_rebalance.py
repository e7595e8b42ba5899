"""The real poll loop on the twin when its partitions go and come."""

from collections.abc import Callable
from itertools import pairwise
from math import inf

import pytest

from kworker.clients.memory.broker import MemoryKafka
from tests.support.poll_loop_rig import (
    GROUP,
    HOLD,
    RESULTS,
    REVOKE_TIMEOUT_S,
    Bench,
    Clock,
    take_turns,
    two_partitions,
)


def test_a_revoke_waits_for_running_records() -> None:
    """A planned revoke waits for what is in hand; what has not begun goes with the partition."""
    kafka, clock = two_partitions(), Clock()
    one = Bench(kafka, ["foo"], clock=clock, hands=2)
    one.turn(2)
    begun = one.in_hand()
    assert len(begun) == 2

    def end_all() -> None:
        for record in list(one.pool.held):
            one.pool.end(record)

    one.pool.completed.meanwhile = end_all
    two = Bench(kafka, ["foo"], clock=clock)
    take_turns(one, two)
    two.end(*[v for v in two.in_hand() if v])
    take_turns(one, two)
    assert len(one.owned) == len(two.owned) == 1
    assert [r.raw.value() for r in one.pool.runs if r.partition.epoch == 1] == begun
    ran = [r.offset for b in (one, two) for r in b.pool.runs if r.partition.number in (0, 1)]
    assert len(ran) == 8
    assert kafka.committed(GROUP) == {("foo", 0): 4, ("foo", 1): 4}


def test_the_next_owner_repeats_nothing_that_has_ended() -> None:
    """The offset map says so."""
    kafka, clock = MemoryKafka(lambda: 1_700_000_000.0), Clock()
    kafka.create("foo", 2)
    for key in (b"a", b"a", b"b", b"b"):
        kafka.append("foo", 0, value=key, key=key)
    one = Bench(kafka, ["foo"], clock=clock)
    one.turn(2)
    one.end(b"b")  # the third; the second waits for the first, the fourth may begin
    one.pool.completed.meanwhile = lambda: [one.pool.end(r) for r in list(one.pool.held)] and None
    two = Bench(kafka, ["foo"], clock=clock)
    take_turns(one, two)
    assert 1 not in [r.offset for r in one.pool.runs if r.partition.epoch == 1]
    for value in two.in_hand():
        assert value
        two.end(value)
    take_turns(one, two)
    assert kafka.committed(GROUP)[("foo", 0)] == 4
    begun = [r.offset for bench in (one, two) for r in bench.pool.runs]
    assert sorted(begun) == [0, 1, 2, 3]


def test_a_result_in_hand_at_a_revoke_is_written_and_committed() -> None:
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock)
    one.turn(2)

    def end_all() -> None:
        for value in one.in_hand():
            assert value
            one.end_with_result(value)

    one.pool.completed.meanwhile = end_all
    two = Bench(kafka, ["foo"], clock=clock)
    take_turns(one, two)
    assert len(kafka.records(RESULTS)) == 2
    assert kafka.committed(GROUP) == {("foo", 0): 1, ("foo", 1): 1}
    assert two.pool.runs == []


def test_a_revoke_does_not_wait_longer_than_its_time() -> None:
    """The group stands still meanwhile."""
    kafka, clock = two_partitions(), Clock()
    one = Bench(kafka, ["foo"], clock=clock, hands=1)
    one.turn(2)
    two = Bench(kafka, ["foo"], clock=clock)
    before = clock.now
    one.turn()
    assert REVOKE_TIMEOUT_S <= clock.now - before < REVOKE_TIMEOUT_S + 1
    assert REVOKE_TIMEOUT_S <= one.poll_loop.stats().rebalancing_us / 1e6 <= clock.now - before
    take_turns(one, two)
    assert len(two.owned) == 1


def revoke(bench: Bench) -> None:
    bench.consumer.close()


def drain(bench: Bench) -> None:
    bench.poll_loop.stop_taking()
    bench.turn(2)


@pytest.mark.parametrize("begin", [revoke, drain])
def test_a_revoke_does_not_wait_for_a_batch_to_fill(begin: Callable[[Bench], None]) -> None:
    """It would wait for its `wait`, and meanwhile the group stands still."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock)
    one.turn(2)
    one.pool.flush = lambda: one.end(*[value for value in one.in_hand() if value])
    before = clock.now
    begin(one)
    assert clock.now - before < 1
    assert kafka.committed(GROUP) == {("foo", 0): 1, ("foo", 1): 1}


def test_a_handler_that_outlives_its_partition_commits_nothing() -> None:
    """The next owner has its record, and the counts drop it. What returned meanwhile goes on."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock)
    one.turn(2)
    late = list(one.pool.held)
    two = Bench(kafka, ["foo"], clock=clock)
    take_turns(one, two)
    for record in late:
        one.pool.end(record)
    take_turns(one, two)
    [stayed], [moved] = one.owned, two.owned
    assert kafka.committed(GROUP)[stayed] == 1
    assert kafka.committed(GROUP).get(moved, 0) == 0
    assert (one.in_hand(), two.in_hand()) == ([], [b"%d-0" % moved[1]])
    assert one.poll_loop.flow.records == 0


def test_a_failing_record_does_not_hold_up_a_revoke() -> None:
    """It waits for its next run, and that is the next owner's."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock, retry=HOLD)
    one.turn(2)
    one.fail(b"0-0")
    one.end(b"1-0")
    one.turn()
    two = Bench(kafka, ["foo"], clock=clock, retry=HOLD)
    before = clock.now
    one.turn()
    assert clock.now - before < 1
    take_turns(one, two)
    assert [*one.in_hand(), *two.in_hand()] == [b"0-0"]


def test_partitions_that_are_lost_are_dropped_without_a_commit() -> None:
    """Another worker may own them already."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock, retry=HOLD)
    one.turn(2)
    one.end(b"0-0")
    one.die()
    before = clock.now
    one.turn()
    assert clock.now - before < 1, "waited for what is in hand"
    history = kafka.history(GROUP)
    assert all(commit.position == 0 for commit in history)
    assert (one.poll_loop.flow.records, one.poll_loop.in_hand) == (0, 0)
    one.turn(3)
    assert one.in_hand() == [b"1-0"]
    assert one.poll_loop.flow.records == 1


def test_records_fetched_before_the_assignment_come_again() -> None:
    """It was fetched for an earlier epoch, from a position that is not this one's."""
    kafka, clock = two_partitions(records=2), Clock()
    one = Bench(kafka, ["foo"], clock=clock, retry=HOLD)
    one.turn(2)
    late = [raw for raw in kafka.records("foo") if raw.offset() == 1]
    one.end(*[value for value in one.in_hand() if value])
    two = Bench(kafka, ["foo"], clock=clock, retry=HOLD)
    one.consumer.late_by_assignment = two.consumer.late_by_assignment = late
    take_turns(one, two)
    assert (one.in_hand(), two.in_hand()) == ([], [])
    assert kafka.committed(GROUP) == {("foo", 0): 2, ("foo", 1): 2}


def test_a_paused_partition_flows_again_after_a_rebalance() -> None:
    """The worker that paused it may be gone, so the pause must not outlive the assignment."""
    kafka, clock = two_partitions(records=10), Clock()
    one = Bench(kafka, ["foo"], clock=clock, hands=2, in_flight=4)
    one.turn(6)
    assert len(one.poll_loop.flow.paused) == 2
    two = Bench(kafka, ["foo"], clock=clock, retry=HOLD)
    take_turns(one, two, count=10)
    done: set[bytes | None] = set()
    for _ in range(40):
        for bench in (one, two):
            done |= set(bench.in_hand())
            for record in list(bench.pool.held):
                bench.pool.end(record)
        take_turns(one, two, count=2)
    assert len(done) == 20
    assert kafka.committed(GROUP) == {("foo", 0): 10, ("foo", 1): 10}


def test_a_revoke_that_waits_beats_all_the_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a long `revoke_timeout` and a slow handler the supervisor would end it as stuck."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock)
    monkeypatch.setattr(one.poll_loop, "_revoke_timeout_s", 90.0)
    one.turn(2)
    beats = [clock.now]

    def beat() -> float:
        beats.append(clock.now)
        return inf

    one.poll_loop.assignment.beat = beat
    one.consumer.close()
    assert clock.now - beats[0] >= 90
    assert max(after - before for before, after in pairwise(beats)) < 1


def test_a_drain_that_begins_in_a_revoke_has_its_own_deadline() -> None:
    """And nothing begins any more, in the partitions that stay either."""
    kafka, clock = two_partitions(records=2), Clock()
    one = Bench(kafka, ["foo"], clock=clock, hands=1)
    one.turn(2)
    until = clock.now + 1.0
    one.poll_loop.assignment.beat = lambda: until - clock.now
    one.poll_loop.assignment.revoked([("foo", 0)])
    assert clock.now - until < 0.1
    one.end(*[value for value in one.in_hand() if value])
    one.turn(3)
    assert one.poll_loop.idle
    assert len(one.pool.runs) == 1


def test_a_worker_without_a_group_answer_joins_anew() -> None:
    """The client itself would wait for minutes for the answer to a join that was lost."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock)
    one.turn(2)
    absent = Bench(kafka, ["foo"], clock=clock)
    one.turn(2)
    kafka.group(GROUP).rebalance()  # for which the other one does not come back
    one.poll_loop.note_brokers(answer=True)
    one.turn(50)
    assert one.poll_loop.problems == []
    one.turn(20)
    [reason] = one.poll_loop.problems
    assert reason.startswith("not a member of the group for 1")
    assert "the group's rebalance does not end" in reason
    lives = set(kafka.group(GROUP)._members)
    one.turn(200)
    assert lives != set(kafka.group(GROUP)._members), "the same member waits"
    absent.die()
    one.turn(3)
    assert one.poll_loop.problems == []
    assert sorted(one.in_hand()) == [b"0-0", b"1-0"]


@pytest.mark.parametrize(("turns", "clients"), [(200, 1), (400, 2)])
def test_a_missing_coordinator_is_reported_and_nothing_is_lost(turns: int, clients: int) -> None:
    """Brokers answer, so nothing else would say that nothing is committed."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock)
    one.turn(2)
    one.poll_loop.note_brokers(answer=True)
    kafka.coordinated = False
    one.turn(turns)
    assert ["coordinator does not answer" in reason for reason in one.poll_loop.problems] == [True]
    kafka.coordinated = True
    one.turn(1)  # a new client joins first
    assert one.poll_loop.assignment.rebalances == clients
    one.end(b"0-0", b"1-0")
    one.turn(2)
    assert one.poll_loop.problems == []
    assert kafka.committed(GROUP) == {("foo", 0): 1, ("foo", 1): 1}
    assert len(one.pool.runs) == 2


def test_a_failed_commit_is_no_problem_after_its_revoke() -> None:
    """It would stay red until something else is committed, perhaps for days."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock)
    one.turn(2)
    one.end(b"0-0")
    one.die()
    one.consumer._hear = lambda: None  # type: ignore[method-assign]
    one.poll_loop.committer.answered("UNKNOWN_MEMBER_ID")
    one.poll_loop._settle(clock.now)
    assert one.poll_loop.problems == ["commit: UNKNOWN_MEMBER_ID; unacknowledged records wait"]
    one.turn(1)
    assert one.poll_loop.problems == []
