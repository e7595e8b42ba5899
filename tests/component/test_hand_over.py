"""With idempotency: outcomes that a worker cannot publish come from the next owner, without a run.

Workers on Kafka and Redis in memory.
"""

from pathlib import Path

import pytest

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.claim import ClaimDone, Claimed, KeptOutcome
from tests.component.test_exactly_once import Faulty
from tests.component.test_partition_return import AT, GUARANTEES, one_partition, published
from tests.support import claims_rig
from tests.support.claiming_worker import ClaimingWorker
from tests.support.poll_loop_rig import GROUP

RESULTS_OF_BOTH = [b"result of 0", b"result of 1"]


@pytest.fixture
def store(tmp_path: Path) -> claims_rig.Bench:
    return claims_rig.Bench(tmp_path)


@pytest.fixture
def kafka() -> MemoryKafka:
    return one_partition(b"a", b"b")


def successor(
    kafka: MemoryKafka, old: ClaimingWorker, transactional: str = "", owner: str = "host/2"
) -> ClaimingWorker:
    new = ClaimingWorker(
        kafka, old.store, owner, clock=old.bench.clock, transactional=transactional
    )
    new.turn(12)
    return new


# -- a drain ----------------------------------------------------------------------------


@GUARANTEES
@pytest.mark.parametrize("outage", ["up", "writable"])
def test_results_that_a_drain_could_not_publish_are_not_redone(
    kafka: MemoryKafka, store: claims_rig.Bench, transactional: str, outage: str
) -> None:
    """No broker answers, or none takes results: what the handlers did is done all the same."""
    old = ClaimingWorker(kafka, store, transactional=transactional)
    old.turn()
    assert old.begun() == [0, 1]
    setattr(kafka, outage, False)
    old.bench.end_with_result(b"0")
    old.turn()
    old.bench.poll_loop.stop_taking()
    old.bench.end_with_result(b"1")
    old.turn()
    assert old.bench.poll_loop.unfinished == 2
    old.end_drain()
    setattr(kafka, outage, True)
    new = successor(kafka, old, transactional)
    assert new.begun() == []
    assert sorted(value or b"" for value in published(kafka)) == RESULTS_OF_BOTH
    assert (store.state("a"), store.state("b")) == (ClaimDone(), ClaimDone())
    assert kafka.committed(GROUP) == {AT: 2}


def test_a_handed_over_outcome_is_handed_over_again(
    kafka: MemoryKafka, store: claims_rig.Bench
) -> None:
    """The next owner drains in the same outage. Nobody has taken the outcome up afterwards."""
    old = ClaimingWorker(kafka, store)
    old.turn()
    kafka.writable = False
    old.bench.end_with_result(b"0")
    old.turn()
    old.end_drain()
    new = successor(kafka, old)
    assert new.begun() == [1]
    new.bench.poll_loop.stop_taking()
    new.turn()
    new.end_drain()
    state = store.state("a")
    assert isinstance(state, KeptOutcome)
    assert state.claim == Claimed("", "foo/0/0")
    kafka.writable = True
    assert successor(kafka, new, owner="host/3").begun() == [1]
    assert published(kafka) == [b"result of 0"]


def test_failures_that_a_drain_could_not_publish_run_again(
    kafka: MemoryKafka, store: claims_rig.Bench
) -> None:
    """Their claims are released at once: also a worker of another host need not wait."""
    old = ClaimingWorker(kafka, store)
    old.turn()
    kafka.writable = False
    old.bench.fail(b"0")
    old.bench.poll_loop.stop_taking()
    old.turn()
    old.end_drain()
    assert store.state("a") is None
    assert store.state("b") == Claimed("host/1", "foo/0/1")
    kafka.writable = True
    assert sorted(successor(kafka, old).begun()) == [0, 1]


def test_an_in_doubt_transaction_is_not_handed_over(
    kafka: MemoryKafka, store: claims_rig.Bench
) -> None:
    """It may be committed: the next owner would make its results visible again."""
    planned: list[tuple[str, str]] = []
    old = ClaimingWorker(
        kafka, store, transactional="w-0", transactor=lambda made: Faulty(made, planned)
    )
    old.turn()
    planned += [("commit", "after"), *[("open", "before")] * 100]
    old.bench.end_with_result(b"0")
    old.bench.poll_loop.stop_taking()
    old.turn()
    old.end_drain()
    assert store.state("a") == Claimed("host/1", "foo/0/0")
    new = successor(kafka, old, "w-0")
    assert new.begun() == [1]
    assert published(kafka) == [b"result of 0"]


# -- a loss, of one that lives on -------------------------------------------------------


def lose(old: ClaimingWorker) -> None:
    """Its brokers only; it goes on with Redis, and knows that its partition is gone."""
    old.bench.poll_loop.assignment.lost([AT])
    old.bench.die()
    old.claims.step()


def test_the_next_owner_publishes_what_a_loss_left_in_the_outbox(
    kafka: MemoryKafka, store: claims_rig.Bench
) -> None:
    """Before the old owner has its brokers back. At least once, it may then write them again."""
    old = ClaimingWorker(kafka, store)
    old.turn()
    kafka.writable = False
    old.bench.end_with_result(b"0")
    old.turn()
    old.bench.end_with_result(b"1")
    old.turn()
    lose(old)
    kafka.writable = True
    new = successor(kafka, old)
    assert published(kafka) == RESULTS_OF_BOTH
    assert kafka.committed(GROUP) == {AT: 2}
    for _ in range(8):
        old.turn(1)
        new.turn(1)
    assert (old.begun(), new.begun()) == ([0, 1], [])
    assert sorted(value or b"" for value in published(kafka)) == sorted(2 * RESULTS_OF_BOTH)
    assert old.bench.poll_loop.settlement.pending == 0


def test_the_next_owner_runs_what_a_loss_left_as_a_failure(
    kafka: MemoryKafka, store: claims_rig.Bench
) -> None:
    """There is no result to publish; and it waits for the run that has not ended."""
    old = ClaimingWorker(kafka, store)
    old.turn()
    kafka.writable = False
    old.bench.fail(b"0")
    old.turn()
    lose(old)
    kafka.writable = True
    assert successor(kafka, old).begun() == [0]


# -- records that do not come again -----------------------------------------------------


def test_an_outcome_whose_record_is_known_to_be_done_is_not_kept(
    kafka: MemoryKafka, store: claims_rig.Bench
) -> None:
    """It expired before its run ended, say. Nobody would ask for the outcome."""
    worker = ClaimingWorker(kafka, store)
    worker.turn()
    worker.bench.die()
    kafka.log(AT).records.pop(0)
    worker.turn()
    worker.bench.end_with_result(b"1")
    worker.turn()
    assert kafka.committed(GROUP) == {AT: 2}
    worker.bench.end_with_result(b"0")
    worker.turn()
    assert published(kafka) == [b"result of 1"]
    assert store.state("a") is None
