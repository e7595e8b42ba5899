"""Claims in a worker: which records run, wait, are settled without a run; what others see of it."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kworker.clients.memory.redis import MemoryRedisTexts
from kworker.clients.redis import OWN_RECORD_S
from kworker.core.claim import OUTCOME_BYTES_MAX, Answer, ClaimDone, Claimed, Exchange, KeptOutcome
from kworker.core.outcome import NO_RESULTS, Failed, Output, Results
from kworker.core.pauses import Pause
from kworker.core.record import Partition, Record
from kworker.core.suspects import Suspect
from kworker.instance.crash_journal import CrashJournal, WatchedJournal, pack
from kworker.instance.pause_file import PauseFile, encode
from kworker.worker.idempotency.claim_client import GATHER_S
from kworker.worker.idempotency.claim_table import BUSY_S, OWN_BUSY_S
from kworker.worker.idempotency.prefetch import AHEAD_MOST, ClaimPrefetch
from kworker.worker.idempotency.shared_pauses import SharedPauses
from kworker.worker.quarantine.shared_suspects import SharedSuspects
from tests.support.claims_rig import LEASE_S, PREFIX, Bench, Worker, busy, event, with_outcome
from tests.support.records import a_partition
from tests.support.waiting import eventually


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "marks")


@pytest.fixture
def orders() -> Partition:
    return a_partition("orders", 0)


@pytest.fixture
def others() -> Partition:
    return a_partition("orders", 1)


# -- running once -----------------------------------------------------------------------


def test_granted_records_come_out_in_the_order_asked(bench: Bench, orders: Partition) -> None:
    """The oldest holds back the commit."""
    worker = bench.worker()
    records = [event(orders, i, f"e{i}") for i in range(5)]
    worker.ask(*records)
    assert list(worker.claimant.take(2)) == records[:2]
    worker.claimant.put_back(records[1:2])
    assert list(worker.claimant.take(9)) == records[1:]


def test_an_event_that_is_done_is_settled_without_a_run(
    bench: Bench, orders: Partition, others: Partition
) -> None:
    """By another record, by the same one delivered again, in this worker and in others."""
    a, b = bench.worker("host/1"), bench.worker("host/2")
    first = event(orders, 1, "e")
    assert a.runs(first) == [first]
    a.claimant.settled([first])
    a.step()
    assert bench.state("e") == ClaimDone()
    again = [event(orders, 1, "e"), event(others, 7, "e")]
    for worker in (a, b):
        for record in again:
            assert worker.ask(record).duplicates == [record]
            assert worker.claimant.ready == 0
            assert not record.claim  # settled, it marks nothing
            record.claim = None
    assert (a.claimant.duplicates, b.claimant.duplicates) == (2, 2)


def test_a_duplicate_waits_for_the_first_and_then_is_one(
    bench: Bench, orders: Partition, others: Partition
) -> None:
    """Asked for with it, after it, or in another worker: while it runs, nothing is known."""
    a, b = bench.worker("host/1"), bench.worker("host/2")
    first, second, third = (event(p, i, "e") for i, p in enumerate((orders, others, others)))
    answers = a.ask(first, second)
    assert list(a.claimant.take(9)) == [first]
    assert busy(answers) == [second]
    assert OWN_BUSY_S[0] <= answers.busy[0][1] <= OWN_BUSY_S[1]
    answers = b.ask(third)
    assert busy(answers) == [third]
    assert BUSY_S[0] <= answers.busy[0][1] <= BUSY_S[1]
    assert busy(a.ask(second)) == [second]
    a.claimant.settled([first])
    assert a.ask(second).duplicates == [second]
    assert b.ask(third).duplicates == [third]


def test_a_failed_event_may_run_again(bench: Bench, orders: Partition, others: Partition) -> None:
    """A durable retry or dead letter never reads as done, or redrive would do nothing."""
    a, b = bench.worker("host/1"), bench.worker("host/2")
    first, again = event(orders, 1, "e"), event(others, 7, "e")
    a.runs(first)
    a.claimant.released([first])
    a.step()
    assert bench.state("e") is None
    assert b.runs(again) == [again]


def test_a_record_that_holds_its_event_runs_again_without_asking(
    bench: Bench, orders: Partition
) -> None:
    """One that waits in memory for its next run keeps its claim; Redis may be away then."""
    worker = bench.worker()
    record = event(orders, 1, "e")
    worker.runs(record)
    bench.redis.away = True
    assert worker.runs(record) == [record]


@pytest.mark.parametrize(("missing", "runs"), [("process", True), ("reject", False)])
def test_a_record_without_an_id_goes_as_configured(
    bench: Bench, orders: Partition, missing: str, runs: bool
) -> None:
    """It holds nothing, so it needs no Redis, and marks nothing."""
    worker = bench.worker(missing=missing)
    record = event(orders, 1, "")
    calls = bench.redis.calls
    answers = worker.ask(record)
    assert list(worker.claimant.take(9)) == ([record] if runs else [])
    assert answers.rejected == ([] if runs else [(record, "the id is empty")])
    worker.claimant.settled([record])
    worker.step()
    assert bench.redis.calls - calls <= 1  # a beat


# -- owners that die --------------------------------------------------------------------


def test_a_dead_neighbours_claim_is_taken_over_at_once(bench: Bench, orders: Partition) -> None:
    """Killed between claim and done, its record comes to another worker of the host."""
    a, b = bench.worker("host/1"), bench.worker("host/2")
    a.runs(event(orders, 1, "e"))
    again = event(orders, 1, "e")
    assert busy(b.ask(again)) == [again]
    bench.gone.add("host/1")
    assert b.runs(again) == [again]
    assert bench.state("e") == Claimed("host/2", "orders/0/1")


def test_the_claim_of_a_silent_owner_is_taken_over_after_a_lease(
    bench: Bench, orders: Partition
) -> None:
    """Its host is gone, too, and nobody can tell but by its beats."""
    a, b = bench.worker("far/1"), bench.worker("host/2")
    a.runs(event(orders, 1, "e"))
    again = event(orders, 1, "e")
    assert not b.insist(again, LEASE_S)
    assert b.insist(again, LEASE_S * 0.3)


def test_a_living_owner_keeps_its_claim_while_its_handler_runs(
    bench: Bench, orders: Partition
) -> None:
    """Its beats come without any other traffic."""
    a, b = bench.worker("far/1"), bench.worker("host/2")
    a.runs(event(orders, 1, "e"))
    assert not b.insist(event(orders, 1, "e"), 10 * LEASE_S, beside=a)


def test_an_outage_of_redis_frees_no_claim_of_the_living(bench: Bench, orders: Partition) -> None:
    """However many leases it lasts, and even if this worker is back in Redis first."""
    a, b = bench.worker("far/1"), bench.worker("host/2")
    a.runs(event(orders, 1, "e"))
    again = event(orders, 1, "e")
    assert not b.insist(again, LEASE_S * 0.8)
    bench.redis.away = True
    assert not b.insist(again, 5 * LEASE_S)
    bench.redis.away = False
    assert not b.insist(again, LEASE_S * 0.8)
    a.step()
    assert not b.insist(again, LEASE_S * 0.8)
    assert bench.state("e") == Claimed("far/1", "orders/0/1")


def test_a_flapping_redis_proves_no_owner_dead(bench: Bench, orders: Partition) -> None:
    """Each time it may have gone before they could renew."""
    a, b = bench.worker("far/1"), bench.worker("host/2")
    a.runs(event(orders, 1, "e"))
    again = event(orders, 1, "e")
    for _ in range(20):
        assert not b.insist(again, LEASE_S * 0.3)
        bench.redis.away = True
        assert not b.insist(again, LEASE_S * 0.2)
        bench.redis.away = False


def test_a_worker_stopped_for_long_has_seen_no_death(bench: Bench, orders: Partition) -> None:
    """Its own clock jumped; the other may have renewed all the time."""
    a, b = bench.worker("far/1"), bench.worker("host/2")
    a.runs(event(orders, 1, "e"))
    again = event(orders, 1, "e")
    b.ask(again)
    b.step(0.1)
    bench.now += 10 * LEASE_S
    assert busy(b.ask(again)) == [again]


# -- handlers that outlive a revoke -----------------------------------------------------


def test_a_duplicate_waits_until_the_kept_outcome_is_published(
    bench: Bench, orders: Partition, others: Partition
) -> None:
    """It is not its outcome to publish."""
    a, b = bench.worker("host/1"), bench.worker("host/2")
    old, new, duplicate = event(orders, 1, "e"), event(orders, 1, "e"), event(others, 5, "e")
    a.runs(old)
    a.claimant.hand_over([with_outcome(old, None)])
    a.step()
    assert busy(b.ask(duplicate)) == [duplicate]
    assert b.ask(new).with_kept_outcome == [new]
    assert new.outcome is NO_RESULTS
    b.claimant.settled([new])
    assert b.ask(duplicate).duplicates == [duplicate]


def test_a_returning_partition_does_not_rerun_a_record_in_hand(
    bench: Bench, orders: Partition
) -> None:
    """The same record comes again to the same worker, while its handler outlives the revoke."""
    worker = bench.worker()
    old, new = event(orders, 1, "e"), event(orders, 1, "e")
    worker.runs(old)
    assert busy(worker.ask(new)) == [new]
    worker.claimant.cancelled([new])  # and a second revoke does not touch the first one's claim
    worker.step()
    assert bench.state("e") == Claimed("host/1", "orders/0/1")
    worker.claimant.hand_over([with_outcome(old, None)])
    assert worker.ask(new).with_kept_outcome == [new]


@pytest.mark.parametrize(
    "outcome",
    [[Output("results", None, b"v" * (OUTCOME_BYTES_MAX + 1), [])], Failed(ValueError())],
)
def test_an_outcome_that_cannot_be_kept_runs_again(
    bench: Bench, orders: Partition, outcome: Any
) -> None:
    """More than 64 KiB; or there is nothing to hand on."""
    a, b = bench.worker("host/1"), bench.worker("host/2")
    old, new = event(orders, 1, "e"), event(orders, 1, "e")
    a.runs(old)
    a.claimant.hand_over([with_outcome(old, outcome)])
    a.step()
    assert b.runs(new) == [new]


def test_an_outcome_taken_up_and_given_up_is_still_there(bench: Bench, orders: Partition) -> None:
    """The partition moved on before it was published."""
    a, b = bench.worker("host/1"), bench.worker("host/2")
    old, new, newer = (event(orders, 1, "e") for _ in range(3))
    a.runs(old)
    a.claimant.hand_over([with_outcome(old, None)])
    a.step()
    assert b.ask(new).with_kept_outcome == [new]
    b.claimant.cancelled([new])
    b.step()
    assert isinstance(bench.state("e"), KeptOutcome)
    assert a.ask(newer).with_kept_outcome == [newer]


def test_an_outcome_whose_record_never_comes_is_taken_by_another(
    bench: Bench, orders: Partition, others: Partition
) -> None:
    """It expired, say. Its event is done once: should it come after all, it is a duplicate."""
    a, b, c = (bench.worker(f"host/{i}") for i in range(3))
    old, other, late = event(orders, 1, "e"), event(others, 5, "e"), event(orders, 1, "e")
    a.runs(old)
    a.claimant.hand_over([with_outcome(old, [Output("results", None, b"v", [])])])
    a.step()
    bench.now += OWN_RECORD_S - 1
    assert busy(b.ask(other)) == [other]
    bench.now += 1
    assert b.ask(other).with_kept_outcome == [other]
    assert isinstance(other.outcome, Results)
    assert [output.value for output in other.outcome] == [b"v"]
    assert busy(c.ask(late)) == [late]
    b.claimant.settled([other])
    b.step()
    assert c.ask(late).duplicates == [late]


def test_an_outcome_that_is_being_published_is_not_taken(
    bench: Bench, orders: Partition, others: Partition
) -> None:
    """However long Kafka takes nothing: else it would be published twice, also exactly once."""
    a, b, c = (bench.worker(f"host/{i}") for i in range(3))
    old, new, other = event(orders, 1, "e"), event(orders, 1, "e"), event(others, 5, "e")
    a.runs(old)
    a.claimant.hand_over([with_outcome(old, None)])
    a.step()
    assert b.ask(new).with_kept_outcome == [new]
    for _ in range(2):
        b.wait(OWN_RECORD_S)
        assert busy(c.ask(other)) == [other]
    bench.gone.add("host/1")
    assert busy(c.ask(other)) == [other]
    bench.now += OWN_RECORD_S
    assert c.ask(other).with_kept_outcome == [other]


@pytest.mark.parametrize("how", ["withdrawn", "handed over", "unread at the end"])
def test_an_outcome_that_is_not_published_after_all_is_free(
    bench: Bench, orders: Partition, how: str
) -> None:
    """At once, and not only when its owner is found dead."""
    a, b = bench.worker("host/1"), bench.worker("host/2")
    old, new = event(orders, 1, "e"), event(orders, 1, "e")
    a.runs(old)
    a.claimant.hand_over([with_outcome(old, None)])
    a.step()
    b.claimant.claim([new])
    bench.now += 2 * GATHER_S
    b.claimant.turn(bench.now)
    b.claiming.turn(0.0)
    assert bench.state("e") == KeptOutcome("orders/0/1", "null", "host/2")
    match how:
        case "withdrawn":
            assert b.claimant.withdraw({orders}) == [new]
            b.step()
        case "handed over":
            assert b.step().with_kept_outcome == [new]
            b.claimant.hand_over([new])
            b.step()
        case _:
            b.end()
    assert bench.state("e") == KeptOutcome("orders/0/1", "null")


# -- giving up partitions ---------------------------------------------------------------


def test_an_unstarted_record_is_free_for_the_new_owner(
    bench: Bench, orders: Partition, others: Partition
) -> None:
    """Granted and waiting, being asked for, or about to be."""
    a, b = bench.worker("host/1", handlers=100), bench.worker("host/2")
    ready, out, waiting, kept = (
        event(orders, 1, "ready"),
        event(orders, 2, "out"),
        event(orders, 3, "waiting"),
        event(others, 4, "kept"),
    )
    a.ask(ready, kept)
    a.claimant.claim([out])
    bench.now += 2 * GATHER_S
    a.claimant.turn(bench.now)
    a.claimant.claim([waiting])
    assert a.claimant.withdraw({orders}) == [ready, out, waiting]
    assert a.claimant.withdraw({orders}) == []
    for _ in range(3):
        a.step()
    assert list(a.claimant.take(9)) == [kept]
    again = [event(orders, i, name) for i, name in enumerate(("ready", "out", "waiting"), 1)]
    assert b.runs(*again) == again


def test_a_withdrawn_record_may_be_asked_for_again(bench: Bench, orders: Partition) -> None:
    """A drain puts back what lies below what has begun; wherever it was, it runs once."""
    worker = bench.worker()
    ready, out, waiting = (event(orders, i, f"e{i}") for i in range(3))
    worker.ask(ready)
    worker.claimant.claim([out])
    bench.now += 2 * GATHER_S
    worker.claimant.turn(bench.now)
    worker.claimant.claim([waiting])
    back = worker.claimant.withdraw({orders})
    assert back == [ready, out, waiting]
    worker.claimant.claim(back)
    for _ in range(3):
        worker.step()
    assert sorted(r.offset for r in worker.claimant.take(9)) == [0, 1, 2]
    assert worker.claimant.room() == 16
    worker.step()
    for i in range(3):
        assert bench.state(f"e{i}") == Claimed("host/1", f"orders/0/{i}")


def test_a_record_withdrawn_during_the_call_may_be_asked_again(
    bench: Bench, orders: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for once, and its claim stays."""
    worker = bench.worker()
    worker.step()
    record = event(orders, 1, "e")

    def meanwhile() -> None:
        monkeypatch.undo()
        worker.claimant.claim(worker.claimant.withdraw({orders}))
        bench.now += 2 * GATHER_S
        worker.claimant.turn(bench.now)

    monkeypatch.setattr(bench.redis, "begin", meanwhile)
    worker.ask(record)
    for _ in range(3):
        worker.step()
    assert list(worker.claimant.take(9)) == [record]
    assert bench.state("e") == Claimed("host/1", "orders/0/1")


def test_an_outcome_withdrawn_on_its_way_comes_again(bench: Bench, orders: Partition) -> None:
    """The partition went while Redis was asked, and came back."""
    a, b = bench.worker("host/1"), bench.worker("host/2")
    old, new, newer = (event(orders, 1, "e") for _ in range(3))
    a.runs(old)
    a.claimant.hand_over([with_outcome(old, None)])
    a.step()
    b.claimant.claim([new])
    bench.now += 2 * GATHER_S
    b.claimant.turn(bench.now)
    assert b.claimant.withdraw({orders}) == [new]
    assert b.step().with_kept_outcome == []
    assert b.ask(newer).with_kept_outcome == [newer]


# -- without Redis ----------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["away", "readonly", "full"])
def test_without_redis_nothing_begins_and_the_reason_is_told(
    bench: Bench, orders: Partition, trouble: str
) -> None:
    """What is in hand ends; afterwards all goes on by itself, marks first."""
    a = bench.worker("host/1")
    first, second = event(orders, 1, "e"), event(orders, 2, "f")
    a.runs(first)
    setattr(bench.redis, trouble, True)
    a.claimant.settled([first])
    assert a.runs(second) == []
    a.wait(120.0)
    assert a.claimant.ready == 0
    assert a.claimant.problem is not None
    assert not a.claimant.pending
    setattr(bench.redis, trouble, False)
    a.wait(3.0)
    assert a.claimant.problem is None
    assert list(a.claimant.take(9)) == [second]
    assert bench.state("e") == ClaimDone()


def test_records_run_unguarded_without_redis_if_configured(
    bench: Bench, orders: Partition, others: Partition
) -> None:
    """They are counted; what this worker itself knows is heeded; Redis learns of it afterwards."""
    a = bench.worker("host/1", unavailable="process")
    first, duplicate, late = event(orders, 1, "e"), event(others, 5, "e"), event(others, 6, "e")
    bench.redis.away = True
    assert a.runs(first) == [first]
    assert busy(a.ask(duplicate)) == [duplicate]
    a.claimant.settled([first])
    a.step()
    assert a.ask(duplicate).duplicates == [duplicate]
    assert (a.claimant.unprotected, a.claimant.duplicates) == (1, 1)
    assert a.claimant.problem is None
    bench.redis.away = False
    a.wait(3.0)
    assert bench.state("e") == ClaimDone()
    assert bench.worker("host/2").ask(late).duplicates == [late]


@pytest.mark.parametrize("unavailable", ["wait", "process"])
def test_claims_are_suspended_only_while_records_wait_for_redis(
    bench: Bench, orders: Partition, unavailable: str
) -> None:
    a = bench.worker(unavailable=unavailable, handlers=2)
    records = [event(orders, i, f"e{i}") for i in range(4)]
    a.claimant.claim(records[:2])
    assert (a.claimant.room(), a.claimant.suspended) == (0, False)
    bench.redis.away = True
    a.step()
    a.claimant.claim(records[2 : 2 + a.claimant.room()])
    assert (a.claimant.room(), a.claimant.suspended) == (0, unavailable == "wait")
    bench.redis.away = False
    a.wait(3.0)
    assert not a.claimant.suspended


def test_calls_to_redis_are_counted_by_whether_it_answers(bench: Bench, tmp_path: Path) -> None:
    """Also those for what instances share, of which the first fails when Redis is away."""
    storage = MemoryRedisTexts(bench.redis, kind="pauses:orders", prefix=PREFIX)
    shared = SharedPauses(storage, PauseFile(tmp_path / "pauses.json"))
    worker = bench.worker(shared=[shared])
    worker.wait(5.0)
    answered, _, failed, _ = worker.claimant.calls.totals
    assert (answered, failed) == (bench.redis.calls, 0)
    bench.redis.away = True
    worker.wait(5.0)
    failed = worker.claimant.calls.totals[2]
    assert failed > 1
    bench.redis.away = False
    worker.wait(5.0)
    assert worker.claimant.calls.totals[0] > answered
    assert worker.claimant.calls.totals[2] == failed


def test_a_full_outbox_is_sent_before_the_first_claim(
    bench: Bench, orders: Partition, others: Partition
) -> None:
    """More than one call carries."""
    worker = bench.worker(handlers=1_000)
    records = [event(orders, i, f"e{i}") for i in range(1_600)]
    worker.ask(*records)
    assert list(worker.claimant.take(2_000)) == records
    bench.redis.away = True
    worker.claimant.settled(records)
    worker.step()
    bench.redis.away = False
    bench.now += 5.0
    last = event(others, 9, "e1599")
    assert worker.ask(last).duplicates == [last]


def test_a_lost_answer_costs_nothing(bench: Bench, orders: Partition) -> None:
    """It was granted and nobody heard; asked again, it is granted again."""
    worker = bench.worker()
    record = event(orders, 1, "e")
    bench.redis.deaf = True
    assert worker.runs(record) == []
    bench.redis.deaf = False
    worker.wait(3.0)
    assert list(worker.claimant.take(9)) == [record]


def test_a_forgotten_claim_of_its_own_is_taken_over(
    bench: Bench, orders: Partition, others: Partition
) -> None:
    """Else it would keep others waiting for as long as this worker lives."""
    worker = bench.worker()
    bench.redis.write("t:e", Claimed("host/1", "orders/0/1"), 3600.0)
    record = event(others, 5, "e")
    assert worker.runs(record) == [record]


def test_a_flush_costs_no_progress(bench: Bench, orders: Partition) -> None:
    """Redis lost its data; marks and claims go on."""
    worker = bench.worker()
    first, second = event(orders, 1, "e"), event(orders, 2, "f")
    worker.runs(first)
    bench.redis.flush()
    worker.claimant.settled([first])
    assert worker.runs(second) == [second]
    assert bench.state("e") == ClaimDone()


# -- the end of a life ------------------------------------------------------------------


def ended_in_an_outage(bench: Bench, record: Record) -> Worker:
    """A worker that has done a record, and could not tell before it ended."""
    worker = bench.worker("host/1")
    worker.runs(record)
    bench.redis.away = True
    worker.claimant.settled([record])
    worker.step()
    worker.end()
    bench.redis.away = False
    return worker


def test_a_neighbour_sends_a_dead_workers_outbox_before_takeover(
    bench: Bench, orders: Partition
) -> None:
    """It has read the folder long ago; the dead one's claim stands, and its work was done."""
    neighbour = bench.worker("host/2")
    neighbour.marks.load()
    ended_in_an_outage(bench, event(orders, 1, "e"))
    again = event(orders, 1, "e")
    assert neighbour.ask(again).duplicates == [again]
    assert list(bench.folder.iterdir()) == []


def test_an_outbox_may_be_sent_twice(bench: Bench, orders: Partition, others: Partition) -> None:
    """Both read the folder; what the second says changes nothing that came between."""
    a = bench.worker("host/1")
    retried, outlived, done = (event(orders, i, name) for i, name in enumerate(("r", "o", "d")))
    a.runs(retried, outlived, done)
    bench.redis.away = True
    a.claimant.released([retried])
    a.claimant.hand_over([with_outcome(outlived, None)])
    a.claimant.settled([done])
    a.step()
    a.end()
    bench.redis.away = False
    b, c = bench.worker("host/2"), bench.worker("host/3")
    b.marks.load()
    c.marks.load()
    again, taken_up = event(orders, 0, "r"), event(orders, 1, "o")
    b.ask(again, taken_up)
    assert list(b.claimant.take(9)) == [again]
    b.claimant.settled([taken_up])
    b.step()
    c.step()
    assert bench.state("r") == Claimed("host/2", "orders/0/0")
    assert (bench.state("o"), bench.state("d")) == (ClaimDone(), ClaimDone())


def test_an_unreadable_outbox_is_put_aside(bench: Bench) -> None:
    """A half-written file would stop every start for ever."""
    bench.folder.mkdir()
    (bench.folder / "host_1.json").write_text('{"done": [')
    bench.worker("host/2").marks.load()
    assert [file.name for file in bench.folder.iterdir()] == ["host_1.bad"]


def test_a_drain_leaves_nothing_behind_that_did_not_begin(bench: Bench, orders: Partition) -> None:
    """Granted or being asked for; what is done is marked; and the thread has ended."""
    worker = bench.worker("host/1")
    begun, granted, asked = (event(orders, i, name) for i, name in enumerate(("b", "g", "a")))
    assert worker.runs(begun) == [begun]
    worker.ask(granted)
    worker.claimant.settled([begun])
    worker.claimant.claim([asked])
    worker.claimant.start()
    assert worker.claimant.drain(time.monotonic() + 20)
    assert bench.state("b") == ClaimDone()
    assert bench.state("g") is None
    assert bench.state("a") is None
    assert not bench.folder.exists() or list(bench.folder.iterdir()) == []


def test_an_unheard_grant_is_released_at_the_end(bench: Bench, orders: Partition) -> None:
    """The poll thread had stopped listening."""
    worker = bench.worker("host/1")
    worker.claimant.claim([event(orders, 1, "e")])
    bench.now += 2 * GATHER_S
    worker.claimant.turn(bench.now)
    worker.claiming.turn(0.0)
    assert bench.state("e") == Claimed("host/1", "orders/0/1")
    worker.end()
    assert bench.state("e") is None


def test_the_last_outbox_is_on_disk_before_redis_is_called(bench: Bench, orders: Partition) -> None:
    """That call may hang until the worker is killed."""
    worker = bench.worker("host/1")
    record = event(orders, 1, "e")
    worker.runs(record)
    worker.claimant.settled([record])
    bench.now += 2 * GATHER_S
    worker.claimant.turn(bench.now)
    kept: list[int] = []
    bench.redis.begin = lambda: kept.append(len(list(bench.folder.iterdir())))  # type: ignore[method-assign]
    worker.end()
    assert kept == [1]
    assert list(bench.folder.iterdir()) == []


def test_a_drain_waits_for_redis_no_longer_than_told(bench: Bench, orders: Partition) -> None:
    """A call may hang; the worker's time to end does not."""
    worker = bench.worker()
    release = threading.Event()
    bench.redis.begin = lambda: release.wait(30)  # type: ignore[method-assign,assignment,return-value]
    worker.claimant.start()
    worker.claimant.claim([event(orders, 1, "e")])
    assert not worker.claimant.drain(time.monotonic() + 0.05)
    release.set()


def test_an_error_of_the_claims_thread_ends_the_worker(bench: Bench, orders: Partition) -> None:
    """Records would wait for ever for a thread that is gone."""

    def broken(_ask: Exchange) -> Answer:
        raise ZeroDivisionError

    worker = bench.worker()
    worker.claiming._claims.exchange = broken  # type: ignore[method-assign]
    worker.claimant.start()
    worker.claimant.claim([event(orders, 1, "e")])
    worker.claimant.turn(bench.now)
    eventually(lambda: worker.claiming.failure, what="the thread has ended")
    with pytest.raises(ZeroDivisionError):
        worker.claimant.turn(bench.now)


@pytest.mark.parametrize("missing", ["process", "reject"])
def test_a_record_whose_id_cannot_be_made_has_none(
    bench: Bench, orders: Partition, missing: str
) -> None:
    """The failure is one record's; an exception of the claims thread would end the worker."""

    def broken(record: Record) -> str:
        if record.offset == 1:
            raise ZeroDivisionError
        return f"e{record.offset}"

    worker = bench.worker(find_id=broken, missing=missing)
    first, second = event(orders, 1, "a"), event(orders, 2, "b")
    answers = worker.ask(first, second)
    assert second in (ran := worker.claimant.take(10))
    if missing == "process":
        assert first in ran
    else:
        assert answers.rejected == [(first, "its id cannot be made: ZeroDivisionError")]


# -- what it costs ----------------------------------------------------------------------


def test_claims_that_are_not_urgent_are_gathered(bench: Bench, orders: Partition) -> None:
    """To wake a thread costs more than what it does; with enough claimed ahead, few calls do."""
    worker = bench.worker(handlers=64)
    records = [event(orders, i, f"e{i}") for i in range(1_000)]
    waiting = list(reversed(records))
    before, ran, seconds = bench.redis.calls, 0, 0.0
    while ran < len(records):
        room = min(worker.claimant.room(), len(waiting))
        worker.claimant.claim([waiting.pop() for _ in range(room)])
        worker.step(0.001)
        run = worker.claimant.take(6)
        worker.claimant.settled(run)
        ran, seconds = ran + len(run), seconds + 0.001
    assert ran / seconds > 5_000
    assert (bench.redis.calls - before) / seconds < 100


def test_claims_ahead_follow_the_rate_of_takes() -> None:
    """What waits for a slow handler would only keep others from it."""
    pace = ClaimPrefetch(handlers=16)
    assert pace.ahead == 16
    for tick in range(100):
        pace.took(160)
        pace.update(1000.0 + tick * 0.02)
    assert pace.ahead == pytest.approx(8_000 * 0.06, rel=0.1)
    for tick in range(100, 200):
        pace.took(20_000)
        pace.update(1000.0 + tick * 0.02)
    assert pace.ahead == AHEAD_MOST
    for tick in range(200, 300):
        pace.update(1000.0 + tick * 0.02)
    assert pace.ahead == 16


# -- suspects and pauses ------------------------------------------------------------------


def test_shared_suspects_are_known_before_the_first_record_runs(
    bench: Bench, orders: Partition, tmp_path: Path
) -> None:
    """A new owner must not run in its pool what its partition's last one died of."""
    storage = MemoryRedisTexts(bench.redis, kind="suspects", prefix=PREFIX)
    shared = SharedSuspects(
        storage, WatchedJournal(CrashJournal(tmp_path / "suspects")), lambda: 0.0
    )
    worker = bench.worker(shared=[shared])
    worker.step()
    storage.put({"orders/0/7": pack(Suspect(("orders", 0, 7), "crash"))})
    shared.request_refresh()
    record = event(orders, 7, "e")
    assert worker.runs(record) == [record]
    assert list(shared.others) == [("orders", 0, 7)]


def test_an_idle_claims_thread_looks_for_suspects_each_second(bench: Bench, tmp_path: Path) -> None:
    """And no more often."""
    storage = MemoryRedisTexts(bench.redis, kind="suspects", prefix=PREFIX)
    shared = SharedSuspects(
        storage, WatchedJournal(CrashJournal(tmp_path / "suspects")), lambda: 0.0
    )
    worker = bench.worker(shared=[shared])
    worker.step(1.0)
    storage.put({"orders/0/7": pack(Suspect(("orders", 0, 7), "crash"))})
    worker.step(0.5)
    assert not shared.others
    worker.step(0.5)
    assert list(shared.others) == [("orders", 0, 7)]


@pytest.mark.parametrize("away", [False, True])
def test_redis_is_asked_for_pauses_in_the_first_turn(
    bench: Bench, tmp_path: Path, away: bool
) -> None:
    """Nothing is taken before that; so a Redis that does not answer is asked in vain, once."""
    storage = MemoryRedisTexts(bench.redis, kind="pauses:orders", prefix=PREFIX)
    storage.put({"orders": encode(Pause(1, "me", 1))})
    bench.redis.away = away
    file = PauseFile(tmp_path / "pauses.json")
    shared = SharedPauses(storage, file)
    worker = bench.worker(shared=[shared])
    worker.claiming.turn(0.0)
    assert shared.asked
    assert list(file.read()) == ([] if away else ["orders"])
    bench.redis.away = False
    worker.wait(3.0)
    assert list(file.read()) == ["orders"]
