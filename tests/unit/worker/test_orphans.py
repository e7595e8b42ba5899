"""Runs that outlive their epoch: who waits for whom, and whose outcome counts."""

import pytest

from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.record import Partition, PartitionLanes, Record
from kworker.worker.orphans import OrphanedRuns
from tests.support.orphans import leave, meet
from tests.support.records import a_partition, a_record

KEY = b"k"


def an_epoch(topic: str = "orders", origin: bytes = b"log", position: int = 0) -> Partition:
    partition = a_partition(topic, position=position)
    partition.origin = origin
    return partition


def event(partition: Partition, offset: int = 7, lane: object = KEY) -> Record:
    return a_record(partition, offset, lane=lane, key=KEY)


def retried(requeue: Partition, offset: int = 4) -> Record:
    """One of the source's records that comes again."""
    record = event(requeue, offset)
    record.source_lanes = PartitionLanes("orders", 0)
    return record


def again(record: Record, partition: Partition) -> Record:
    """Read once more, in another epoch."""
    return event(partition, record.offset, record.lane)


@pytest.fixture
def orphans() -> OrphanedRuns:
    return OrphanedRuns(keeps=True)


@pytest.mark.parametrize("lane", [KEY, None])
def test_a_record_read_again_waits_and_its_run_takes_its_place(
    orphans: OrphanedRuns, lane: object
) -> None:
    """With its attempts, and with what the one read again counts for in its epoch."""
    run, here = event(an_epoch(), lane=lane), an_epoch()
    leave(orphans, run.partition, [run])
    orphans.returned([here])
    new = again(run, here)
    new.memory_bytes, run.attempt = 999, 3
    assert meet(orphans, new) is None
    assert orphans.ended([run]) == ([run], [], [])
    assert (run.partition, run.source_lanes) == (here, here.lanes)
    assert (run.memory_bytes, run.attempt) == (999, 3)
    assert not orphans


def test_an_early_outcome_waits_for_its_record_without_claims(orphans: OrphanedRuns) -> None:
    """The partition is away, or what is read again is not there yet."""
    run, here = event(an_epoch()), an_epoch()
    leave(orphans, run.partition, [run])
    assert orphans.ended([run]) == ([], [], [])
    orphans.returned([here])
    assert meet(orphans, again(run, here)) is run
    assert not orphans


def test_an_early_outcome_is_stale_with_claims() -> None:
    orphans = OrphanedRuns(keeps=False)
    run, late = event(an_epoch()), event(an_epoch(), 8, b"other")
    leave(orphans, run.partition, [run, late])
    assert orphans.ended([run]) == ([], [], [run])
    orphans.returned([here := an_epoch()])
    assert meet(orphans, again(late, here)) is None
    assert orphans.ended([late]) == ([late], [], [])


def test_another_log_of_that_name_has_its_runs_for_itself(orphans: OrphanedRuns) -> None:
    """An offset of a topic that was made again is another record; its key waits all the same."""
    run, here = event(an_epoch()), an_epoch(origin=b"another")
    leave(orphans, run.partition, [run])
    orphans.returned([here])
    new = again(run, here)
    assert meet(orphans, new) is None
    assert orphans.ended([run]) == ([], [new], [run])
    assert meet(orphans, new) is new


def test_a_run_covered_by_position_or_map_is_stale(orphans: OrphanedRuns) -> None:
    """Others did it; and its key goes on when it has ended."""
    run, here = event(an_epoch()), an_epoch(position=8)
    leave(orphans, run.partition, [run])
    orphans.returned([here])
    following = event(here, 9)
    assert meet(orphans, following) is None
    assert orphans.ended([run]) == ([], [following], [run])


def test_a_run_overtaken_by_its_key_is_done_again(orphans: OrphanedRuns) -> None:
    """Which waits for it, as only one of a key may run."""
    run, here = event(an_epoch()), an_epoch()
    leave(orphans, run.partition, [run])
    orphans.returned([here])
    earlier, new = event(here, 5), again(run, here)
    assert meet(orphans, earlier) is None
    assert orphans.ended([run]) == ([], [earlier], [run])
    assert [meet(orphans, earlier), meet(orphans, new)] == [earlier, new]


def test_an_ended_earlier_run_and_the_one_behind_are_adopted(
    orphans: OrphanedRuns,
) -> None:
    """As it would have been without a rebalance."""
    old = an_epoch()
    earlier, run = event(old, 5), event(old, 7)
    leave(orphans, old, [run])
    assert orphans.ended([earlier]) == ([], [], [])  # its transaction was given up
    orphans.returned([here := an_epoch()])
    assert meet(orphans, again(earlier, here)) is earlier
    assert meet(orphans, again(run, here)) is None
    assert orphans.ended([run]) == ([run], [], [])


def test_an_unstarted_record_runs_when_read_again(orphans: OrphanedRuns) -> None:
    run, here = event(an_epoch()), an_epoch()
    leave(orphans, run.partition, [run])
    orphans.returned([here])
    new = again(run, here)
    assert meet(orphans, new) is None
    run.outcome = NOT_ATTEMPTED
    assert orphans.ended([run]) == ([], [new], [run])


def test_an_outcome_after_its_record_was_read_again_is_stale(
    orphans: OrphanedRuns,
) -> None:
    """That one may run already."""
    run, here = event(an_epoch()), an_epoch()
    leave(orphans, run.partition, [])
    orphans.returned([here])
    here.ledger.deliver(7)
    assert orphans.ended([run]) == ([], [], [run])


def test_an_outcome_after_its_partition_was_read_again_is_stale(orphans: OrphanedRuns) -> None:
    """An earlier record of its key may have run since, and must not be the last one."""
    here = an_epoch()
    orphans.returned([here])
    early = event(an_epoch())
    assert orphans.ended([early]) == ([], [], [])
    here.ledger.deliver(5)
    late = event(an_epoch(), 8)
    assert orphans.ended([late]) == ([], [], [late])


def test_a_key_is_one_whichever_topic_its_records_come_from(orphans: OrphanedRuns) -> None:
    """One that comes again by the requeue topic, whose source is here now, and then is not."""
    requeue, here = an_epoch("orders.requeue"), an_epoch()
    run = retried(requeue, 3)
    leave(orphans, requeue, [run])
    orphans.returned([here])
    other = event(here)
    assert meet(orphans, other) is None
    back = retried(an_epoch("orders.requeue"))
    assert orphans.ended([run]).freed == [other]
    leave(orphans, here, [other])
    assert meet(orphans, back) is None


def test_a_retry_waiting_for_an_orphaned_run_is_freed_with_it(orphans: OrphanedRuns) -> None:
    """One that comes again arrived while its source was away, and its source came back after."""
    run, here, requeue = event(an_epoch()), an_epoch(), an_epoch("orders.requeue")
    leave(orphans, run.partition, [run])
    back = retried(requeue)
    assert meet(orphans, back) is None
    orphans.returned([here, requeue])
    assert meet(orphans, again(run, here)) is None
    assert orphans.ended([run]) == ([run], [back], [])
    assert not orphans


def test_a_revoke_withdraws_only_waiters_of_its_partition(orphans: OrphanedRuns) -> None:
    run, here, requeue = event(an_epoch()), an_epoch(), an_epoch("orders.requeue")
    leave(orphans, run.partition, [run])
    orphans.returned([here, requeue])
    back, other = retried(requeue), event(here, 5)
    assert [meet(orphans, back), meet(orphans, other)] == [None, None]
    assert orphans.withdraw([here]) == [other]
    leave(orphans, here, [])
    assert orphans.ended([run]).freed == [back]


def test_a_partition_lost_again_leaves_no_waiters(orphans: OrphanedRuns) -> None:
    """Neither for its own run, which may be taken up the next time, nor for another."""
    run, here = event(an_epoch()), an_epoch()
    leave(orphans, run.partition, [run])
    orphans.returned([here])
    assert meet(orphans, again(run, here)) is None
    assert orphans.withdraw([here]) == []  # it has begun, in a way
    leave(orphans, here, [])
    orphans.returned([third := an_epoch()])
    assert meet(orphans, event(third, 5)) is None
    assert [record.offset for record in orphans.withdraw([third])] == [5]
    assert orphans.ended([run]) == ([], [], [run])
