"""The real poll loop on the twin when partitions return that it had records of in hand."""

import itertools
from collections import deque
from collections.abc import Collection
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.claim import ClaimDone
from kworker.core.headers import Envelope, Source
from kworker.core.message import Fields
from kworker.core.offset_map import TopicIdentity
from kworker.core.outcome import Output
from kworker.worker.retries.policy import RetryPolicy
from tests.support import claims_rig
from tests.support.claiming_worker import ClaimingWorker
from tests.support.delayed import Delays, requeue
from tests.support.poll_loop_rig import (
    GROUP,
    HOLD,
    REQUEUE,
    RESULTS,
    Bench,
    Clock,
    take_turns,
    two_partitions,
)

GUARANTEES = pytest.mark.parametrize("transactional", ["", "w-0"])
AT = ("foo", 0)


def one_partition(*keys: bytes) -> MemoryKafka:
    """A topic of one partition, whose records are named by their offsets."""
    kafka = MemoryKafka(lambda: 1_700_000_000.0)
    kafka.create("foo", 1)
    kafka.create(RESULTS)
    for i, key in enumerate(keys):
        kafka.append("foo", 0, value=b"%d" % i, key=key)
    return kafka


def lose(bench: Bench) -> None:
    """It loses all, and has it again before its handlers end."""
    bench.die()
    bench.turn(6)


def begun(bench: Bench) -> list[int]:
    return [record.offset for record in bench.pool.runs]


def published(kafka: MemoryKafka) -> list[bytes | None]:
    return [raw.value() for raw in kafka.records(RESULTS)]


@GUARANTEES
def test_a_run_goes_on_when_its_partition_returns(transactional: str) -> None:
    """It is not begun again, and its outcome counts, in the epoch in which it ends."""
    kafka = one_partition(b"a", b"b")
    bench = Bench(kafka, ["foo"], transactional=transactional)
    bench.turn(2)
    lose(bench)
    assert bench.poll_loop.flow.records == 2
    bench.end_with_result(b"0")
    bench.end_with_result(b"1")
    bench.turn(3)
    assert begun(bench) == [0, 1]
    assert published(kafka) == [b"result of 0", b"result of 1"]
    assert kafka.committed(GROUP) == {AT: 2}
    assert (bench.poll_loop.flow.records, bench.poll_loop.idle) == (0, True)


def test_a_loss_is_not_logged_as_a_gain_of_others() -> None:
    """Here nobody else is in the group, and what was in hand is not done again, either."""
    bench = Bench(one_partition(b"a"), ["foo"])
    bench.turn(2)
    with capture_logs() as lines:
        lose(bench)
    [lost] = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert lost == "partitions lost; their next owners go on from the committed positions"
    assert (bench.owned, begun(bench)) == ([AT], [0])


@GUARANTEES
@pytest.mark.parametrize("times", [2, 3])
def test_a_run_goes_on_however_often_its_partition_leaves(transactional: str, times: int) -> None:
    kafka = one_partition(b"a")
    bench = Bench(kafka, ["foo"], transactional=transactional)
    bench.turn(2)
    for _ in range(times):
        lose(bench)
    bench.end_with_result(b"0")
    bench.turn(3)
    assert begun(bench) == [0]
    assert published(kafka) == [b"result of 0"]
    assert kafka.committed(GROUP) == {AT: 1}


@GUARANTEES
def test_a_run_that_ended_while_away_is_not_repeated(transactional: str) -> None:
    """A rebalance takes its time."""
    kafka = one_partition(b"a", b"b")
    bench = Bench(kafka, ["foo"], transactional=transactional)
    bench.turn(2)
    bench.die()
    bench.turn()  # it has lost it, and not got it again
    assert bench.owned == []
    bench.end_with_result(b"0")
    bench.turn(6)
    bench.end_with_result(b"1")
    bench.turn(3)
    assert begun(bench) == [0, 1]
    assert published(kafka) == [b"result of 0", b"result of 1"]
    assert kafka.committed(GROUP) == {AT: 2}


def test_a_key_runs_again_in_order_when_a_result_was_not_written() -> None:
    """The later record has no result, and could be done before the earlier one's is in Kafka."""
    kafka = one_partition(b"a", b"a")
    bench = Bench(kafka, ["foo"])
    kafka.writable = False
    bench.turn(2)
    bench.end_with_result(b"0")
    bench.turn(2)
    bench.end(b"1")
    bench.turn(3)
    lose(bench)
    kafka.writable = True
    end_all_in_turn(bench, 2)
    assert begun(bench) == [0, 1, 0, 1]
    assert kafka.committed(GROUP) == {AT: 2}


def test_a_key_runs_again_in_order_when_a_result_was_refused() -> None:
    """The later record must not be done while the earlier one's dead letter is on its way."""
    kafka = one_partition(b"a", b"a")
    results = kafka.topic(RESULTS)
    assert results
    results.compacted = True
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.pool.end(bench.holds(b"0"), [Output(RESULTS, None, b"without a key", [])])
    bench.turn()
    bench.end(b"1")
    bench.turn()
    lose(bench)
    end_all_in_turn(bench, 2)
    assert begun(bench) == [0, 1, 0, 1]
    assert kafka.committed(GROUP) == {AT: 2}


def end_all_in_turn(bench: Bench, count: int) -> None:
    """Each as soon as it has begun, so many times."""
    for _ in range(count):
        for record in list(bench.pool.held):
            bench.pool.end(record)
        bench.turn(3)


def test_an_aborted_outcome_is_written_again_in_the_next_epoch() -> None:
    """Its handler has run; only what was not committed is done again, and not the handler."""
    kafka = one_partition(b"a")
    bench = Bench(kafka, ["foo"], transactional="w-0")
    bench.turn(2)
    bench.end_with_result(b"0")
    bench.clock.now += 0.01  # before the next commit is due
    bench.poll_loop.turn()
    assert bench.poll_loop.settlement.pending == 1
    lose(bench)
    bench.turn(3)
    assert begun(bench) == [0]
    assert published(kafka) == [b"result of 0"]
    assert kafka.committed(GROUP) == {AT: 1}
    assert (bench.poll_loop.flow.records, bench.poll_loop.flow.bytes) == (0, 0)


@GUARANTEES
def test_an_outcome_of_work_done_elsewhere_is_dropped(transactional: str) -> None:
    """The position read back covers it: its outcome is there already."""
    kafka, clock = two_partitions(records=1), Clock()
    one = Bench(kafka, ["foo"], clock=clock, transactional=transactional)
    one.turn(2)
    late = list(one.pool.held)
    two = Bench(kafka, ["foo"], clock=clock, transactional=transactional and "w-1")
    take_turns(one, two)
    [moved] = two.owned
    for value in two.in_hand():
        assert value
        two.end_with_result(value)
    take_turns(one, two)
    assert kafka.committed(GROUP)[moved] == 1
    two.poll_loop.stop_taking()
    two.consumer.close()
    take_turns(one)
    assert len(one.owned) == 2
    for record in late:
        one.pool.end(record)
    take_turns(one)
    assert len(one.pool.runs) == 2
    assert len(published(kafka)) == 1
    assert set(kafka.committed(GROUP).values()) == {1}


def test_a_run_of_a_recreated_topic_is_not_adopted() -> None:
    kafka, ids = one_partition(b"a"), itertools.count()

    def identify(topics: Collection[str], _timeout_s: float) -> dict[str, TopicIdentity]:
        return {topic: TopicIdentity("memory", str(next(ids))) for topic in topics}

    bench = Bench(kafka, ["foo"], identify=identify)
    bench.turn(2)
    lose(bench)
    [old] = bench.pool.held
    bench.pool.end(old)
    bench.turn(2)
    assert begun(bench) == [0, 0]
    assert kafka.committed(GROUP) == {AT: 0}


def test_only_its_own_key_waits_for_an_orphaned_run() -> None:
    kafka = one_partition(b"a", b"a", b"b")
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.end(b"2")
    lose(bench)
    assert bench.in_hand() == [b"0"]
    kafka.append("foo", 0, value=b"3", key=b"b")
    bench.turn(2)
    assert bench.in_hand() == [b"0", b"3"]
    bench.end(b"0")
    bench.turn(2)
    assert bench.in_hand() == [b"3", b"1"]


@pytest.mark.parametrize("ends_early", [True, False])
def test_a_run_that_overtook_its_key_is_done_again(ends_early: bool) -> None:
    """Else what is done again would come after what followed it, and that would stand."""
    kafka = one_partition(b"a", b"a")
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    kafka.up = False  # what is settled now is not committed
    bench.end(b"0")
    bench.turn(2)
    assert bench.in_hand() == [b"1"]
    [early] = bench.pool.held
    bench.die()
    kafka.up = True
    bench.turn()
    if ends_early:
        bench.pool.end(early)
    bench.turn(6)
    if not ends_early:
        assert bench.in_hand() == [b"1"], "one of a key at a time"
        bench.pool.end(early)
        bench.turn(2)
    assert bench.in_hand() == [b"0"]
    bench.end(b"0")
    bench.turn(2)
    bench.end(b"1")
    bench.turn(2)
    assert begun(bench) == [0, 1, 0, 1]
    assert kafka.committed(GROUP) == {AT: 2}


@GUARANTEES
def test_a_failure_after_a_return_keeps_its_attempt_count(transactional: str) -> None:
    """With the attempts that it has had."""
    kafka = one_partition(b"a")
    bench = Bench(kafka, ["foo"], retry=HOLD, transactional=transactional)
    bench.turn(2)
    bench.fail(b"0")
    bench.turn(6)
    assert [record.attempt for record in bench.pool.held] == [2]
    lose(bench)
    bench.fail(b"0")
    bench.turn(10)
    assert [record.attempt for record in bench.pool.held] == [3]
    bench.end(b"0")
    bench.turn(2)
    assert kafka.committed(GROUP) == {AT: 1}


def test_a_run_of_a_retried_record_goes_on_too() -> None:
    """From the requeue topic, whose positions are others than its source's."""
    kafka = one_partition(b"a")
    bench = Bench(kafka, ["foo", REQUEUE])
    bench.turn(2)
    bench.fail(b"0")
    bench.turn(2)
    Delays(kafka).forward()
    bench.turn(2)
    assert [record.attempt for record in bench.pool.held] == [2]
    lose(bench)
    bench.end_with_result(b"0")
    bench.turn(3)
    assert [record.attempt for record in bench.pool.runs] == [1, 2]
    assert published(kafka) == [b"result of 0"]
    assert bench.poll_loop.idle


@pytest.mark.parametrize("ends", ["before the loss", "while it is away", "when it is back"])
def test_a_claimed_orphaned_run_goes_on_and_its_event_is_done(tmp_path: Path, ends: str) -> None:
    """What is ended before anybody waits for it is left with Redis, for whoever is given it."""
    kafka = one_partition(b"a", b"b")
    worker = ClaimingWorker(kafka, claims_rig.Bench(tmp_path))
    bench, at = worker.bench, {"before the loss": 0, "while it is away": 1, "when it is back": 2}
    worker.turn()
    for moment in range(3):
        if at[ends] == moment:
            bench.end_with_result(b"0")
        match moment:
            case 0:
                bench.die()
                worker.turn(1)
            case 1:
                worker.turn()
    worker.turn()
    assert begun(bench) == [0, 1]
    assert published(kafka) == [b"result of 0"]
    assert worker.store.state("a") == ClaimDone()
    assert bench.in_hand() == [b"1"]
    bench.fail(b"1")
    worker.turn()
    assert worker.store.state("b") is None
    assert kafka.committed(GROUP) == {AT: 2}


@pytest.mark.parametrize("given_back", [True, False])
def test_an_unstarted_record_begins_when_its_partition_returns(
    given_back: bool,
) -> None:
    """The pool had it, and no handler: it may give it back, or come to it and leave it."""
    kafka = one_partition(b"a")
    bench = Bench(kafka, ["foo"])
    bench.pool.waiting = deque()
    bench.turn(2)
    assert len(bench.pool.waiting) == 1
    lose(bench)
    assert bench.poll_loop.flow.records == 1
    if given_back:
        bench.pool.given_back.extend(bench.pool.waiting)
        bench.pool.waiting.clear()
    bench.pool.begin_waiting()
    assert begun(bench) == []
    bench.turn(2)
    assert begun(bench) == [0]


def test_a_revoke_waits_only_for_the_adopted_run() -> None:
    """Its time is long enough here for the run of the earlier epoch."""
    kafka, clock = one_partition(b"a", b"a"), Clock()
    bench = Bench(kafka, ["foo"], clock=clock)
    bench.turn(2)
    lose(bench)
    bench.pool.completed.meanwhile = lambda: bench.end(*[v for v in bench.in_hand() if v])
    before = clock.now
    bench.consumer.close()
    assert clock.now - before < 1
    assert begun(bench) == [0]
    assert kafka.committed(GROUP) == {AT: 1}


def test_a_revoke_does_not_wait_behind_a_stale_run() -> None:
    """It has not begun, and its next owner may."""
    kafka, clock = one_partition(b"a", b"a"), Clock()
    bench = Bench(kafka, ["foo"], clock=clock)
    bench.turn(2)
    kafka.up = False
    bench.end(b"0")
    bench.turn(2)
    bench.die()
    kafka.up = True
    bench.turn(6)
    assert bench.poll_loop.flow.records > 0
    before = clock.now
    bench.consumer.close()
    assert clock.now - before < 1
    assert begun(bench) == [0, 1]


def test_a_drain_waits_for_the_runs_it_adopted() -> None:
    kafka = one_partition(b"a", b"b")
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    lose(bench)
    bench.drain()
    assert begun(bench) == [0, 1]
    assert kafka.committed(GROUP) == {AT: 2}


def test_an_outcome_below_the_position_is_forgotten() -> None:
    """Its record was compacted away meanwhile, say: all below the position is done without it."""
    kafka = one_partition(b"a", b"b")
    bench = Bench(kafka, ["foo"])
    bench.turn(2)
    bench.die()
    bench.turn()
    bench.end_with_result(b"0")
    kafka.log(AT).records.pop(0)
    bench.turn(6)
    orphans = bench.poll_loop.dispatch._orphans
    assert orphans
    bench.end(b"1")
    bench.turn(3)
    assert kafka.committed(GROUP) == {AT: 2}
    assert not orphans


@pytest.mark.parametrize("retry", [None, HOLD])
def test_a_revoked_source_frees_no_retry_of_a_kept_partition(
    retry: RetryPolicy | None,
) -> None:
    """With `group.protocol = "consumer"` its requeue partition stays, and keeps its order."""
    kafka = one_partition()
    kafka.create(REQUEUE, 2)
    for offset in range(2):
        envelope = Envelope(Source("foo", 0, 10 + offset, 1_700_000_000_000), 2, 0, 0, [])
        raw = Fields(("", 0, 0), 0, b"a", b"retry %d" % offset, ())
        requeue(kafka, envelope, raw)
    bench = Bench(kafka, ["foo", REQUEUE], retry=retry)
    bench.turn(2)
    if retry is HOLD:
        bench.fail(b"retry 0")  # it waits in memory, and its key with it
        bench.turn()
    bench.poll_loop.assignment.revoked([AT])
    bench.turn(2)
    assert bench.in_hand() == ([] if retry is HOLD else [b"retry 0"])
    bench.turn(6)
    assert bench.in_hand() == [b"retry 0"]
    bench.end(b"retry 0")
    bench.turn(2)
    assert bench.in_hand() == [b"retry 1"]
    bench.end(b"retry 1")
    bench.turn(2)
    assert (bench.poll_loop.flow.records, bench.poll_loop.flow.held, bench.poll_loop.idle) == (
        0,
        0,
        True,
    )
