"""An audit over topics in memory: each record is counted once, whatever strangers wrote."""

from pathlib import Path

import pytest

from kworker.core.audit import Outcome
from kworker.core.headers import Source
from kworker.core.times import TimeRange
from kworker.dead_letters.dead_letter import DeadLetterIdentity
from kworker.dead_letters.resolutions import How, Resolution, resolution_record
from kworker.errors import ConfigError, KworkerError
from kworker.spark.tables.audited_table import AuditedTable, RowFault
from tests.support.audited import STAMP, Brokers, audited, of, service


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def resolve(brokers: Brokers, offset: int, how: How) -> None:
    identity = DeadLetterIdentity(0, offset, STAMP)
    record = resolution_record(
        "clicks.dead.state", "clicks.dead", identity, Resolution(how, "me@here", STAMP)
    )
    brokers.append("clicks.dead.state", key=record.key, value=record.value)


def test_every_record_is_counted_once_by_its_outcome(brokers: Brokers, tmp_path: Path) -> None:
    brokers.orders(*[STAMP] * 8)
    brokers.settle("orders", 7)
    brokers.result(0)
    brokers.result(1)
    brokers.result(1, STAMP, ("kworker-index", b"1"))
    for offset in (2, 3, 4):
        brokers.append("clicks.dead", (of(offset), ("kworker-attempt", b"3")))
    resolve(brokers, 1, "discarded")
    resolve(brokers, 2, "redriven")
    due = ("kworker-due", b"%d" % (STAMP + 500))
    brokers.append("clicks.retry.1s", (of(5), ("kworker-attempt", b"2"), due))
    found = audited(brokers, service(tmp_path))
    assert found.clean
    assert found.records == 8
    assert found.outcomes == {
        Outcome.RESULT: 2,
        Outcome.DEAD: 1,
        Outcome.DISCARDED: 1,
        Outcome.SENT_ELSEWHERE: 1,
        Outcome.WAITING: 1,
        Outcome.NO_RESULT: 1,
        Outcome.NOT_SETTLED: 1,
    }
    assert (found.results, found.next_due_ms) == (3, STAMP + 500)


def test_a_retry_is_followed_through_delay_and_requeue(brokers: Brokers, tmp_path: Path) -> None:
    brokers.orders(STAMP)
    brokers.settle("orders", 1)
    attempt = ("kworker-attempt", b"2")
    brokers.append("clicks.retry.1s", (of(0), attempt))
    assert audited(brokers, service(tmp_path)).outcomes == {Outcome.WAITING: 1}
    brokers.settle("clicks.retry.1s", 1, "clicks.delay")
    lost = audited(brokers, service(tmp_path))
    assert [(each.kind, each.places) for each in lost.problems] == [
        ("hole", ("clicks.retry.1s:0:0",))
    ]
    brokers.append("clicks.requeue", (of(0), attempt))
    assert audited(brokers, service(tmp_path)).outcomes == {Outcome.WAITING: 1}
    brokers.settle("clicks.requeue", 1)
    brokers.result(0, STAMP, attempt)
    assert audited(brokers, service(tmp_path)).outcomes == {Outcome.RESULT: 1}


def test_a_double_is_listed_with_both_positions(brokers: Brokers, tmp_path: Path) -> None:
    brokers.orders(STAMP, STAMP)
    for offset in (0, 1, 1):
        brokers.result(offset)
    found = audited(brokers, service(tmp_path))
    assert (found.doubles, found.holes) == (1, 0)
    [problem] = found.problems
    assert problem.record == "orders:0:1"
    assert problem.places == ("clicks.results:0:1", "clicks.results:0:2")


def test_all_problems_are_counted_and_some_listed(brokers: Brokers, tmp_path: Path) -> None:
    brokers.orders(*[STAMP] * 30)
    brokers.settle("orders", 30)
    found = audited(brokers, service(tmp_path), expect_results=True, problems_max=4)
    assert (found.holes, len(found.problems)) == (30, 4)


def test_only_records_of_the_range_of_time_count(brokers: Brokers, tmp_path: Path) -> None:
    """Their timestamps are in no order; a result has that of its source."""
    stamps = [STAMP + 5, STAMP + 1, STAMP + 9, STAMP + 3]
    brokers.orders(*stamps)
    brokers.settle("orders", 4)
    for offset, stamp in enumerate(stamps):
        brokers.result(offset, stamp)
    found = audited(brokers, service(tmp_path), TimeRange(STAMP + 3, STAMP + 9))
    assert (found.records, found.results, found.gone) == (2, 2, 0)


def test_traces_of_deleted_records_are_told_apart(brokers: Brokers, tmp_path: Path) -> None:
    """Retention deleted one source record; another is of an earlier topic of that name."""
    brokers.orders(STAMP, STAMP)
    brokers.settle("orders", 2)
    brokers.lows["orders"] = 1
    brokers.result(0)
    brokers.result(1, STAMP - 1)
    brokers.result(1)
    found = audited(brokers, service(tmp_path))
    assert (found.records, found.gone, found.clean) == (1, 2, True)


def test_what_strangers_and_replays_wrote_is_left_out(brokers: Brokers, tmp_path: Path) -> None:
    brokers.orders(STAMP)
    brokers.settle("orders", 1)
    brokers.result(0)
    brokers.result(0, STAMP, ("kworker-replay", b"abc"))
    brokers.append("clicks.dead", (of(0), ("kworker-replay", b"abc")))
    brokers.append("clicks.requeue", (of(0), ("kworker-replay", b"abc")))
    for headers in (
        (),
        (("kworker-source", b"orders"),),
        (("kworker-source", b"\xff/0/0/0"),),
        (("kworker-source", b"orders/0/0/1/2/3"),),
        (of(0), ("kworker-attempt", b"minus one")),
    ):
        for topic in ("clicks.retry.1s", "clicks.requeue", "clicks.dead"):
            brokers.append(topic, headers)
    for headers in ((), (("kworker-source", b"orders"),)):
        brokers.append("clicks.results", headers)
    found = audited(brokers, service(tmp_path))
    assert found.outcomes == {Outcome.RESULT: 1}
    assert found.clean


def test_a_result_with_an_odd_number_is_the_first(brokers: Brokers, tmp_path: Path) -> None:
    """No number that a stranger wrote makes the audit count to it."""
    brokers.orders(STAMP)
    brokers.result(0, STAMP, ("kworker-index", b"9" * 4_000))
    assert audited(brokers, service(tmp_path)).clean


def test_a_source_that_is_read_by_other_services_counts_for_this(
    brokers: Brokers, tmp_path: Path
) -> None:
    """A topic of `delivery.topics` has results, too, and other things."""
    brokers.records["letters"] = []
    brokers.orders(STAMP)
    brokers.append("letters", (of(0), ("kworker-index", b"1")))
    brokers.append("letters")
    brokers.result(0)
    config = service(tmp_path, delivery={"topics": ["letters"]})
    found = audited(brokers, config)
    assert (found.results, found.clean) == (2, True)


def test_rows_are_reported_with_the_results(brokers: Brokers, tmp_path: Path) -> None:
    brokers.orders(STAMP, STAMP, STAMP)
    brokers.settle("orders", 3)
    for offset in (0, 1):
        brokers.result(offset)
    missing, twice, alone = (Source("orders", 0, offset, STAMP) for offset in range(3))
    table = AuditedTable(
        "orders",
        rows=3,
        counts={"missing": 1, "repeated": 1, "unexplained": 1},
        faults=[RowFault("missing", missing, 0, 0), RowFault("repeated", twice, 0, 2)],
        unexplained=iter([alone]),
    )
    found = audited(brokers, service(tmp_path), tables=[table])
    assert (found.holes, found.doubles) == (1, 2)
    assert [(each.record, each.kind) for each in found.problems] == [
        ("orders:0:0", "hole"),
        ("orders:0:1", "double"),
        ("orders:0:2", "double"),
    ]
    assert found.problems[-1].places == ("table orders",)
    assert found.outcomes == {Outcome.RESULT: 3}


def test_a_row_outlives_its_deleted_result(brokers: Brokers, tmp_path: Path) -> None:
    brokers.orders(STAMP)
    brokers.settle("orders", 1)
    brokers.result(0)
    brokers.lows["clicks.results"] = 1
    row = Source("orders", 0, 0, STAMP)
    table = AuditedTable("orders", rows=1, counts={"unexplained": 1}, unexplained=iter([row]))
    found = audited(brokers, service(tmp_path), tables=[table], expect_results=True)
    assert (found.outcomes, found.clean) == ({Outcome.RESULT: 1}, True)


# The snapshot.


def test_positions_are_read_before_the_ends(brokers: Brokers, tmp_path: Path) -> None:
    """Else a record could be settled in between, and its result be missing."""
    audited(brokers, service(tmp_path))
    first_end = next(n for n, asked in enumerate(brokers.asked) if asked.startswith("latest"))
    assert not any(asked.startswith("positions") for asked in brokers.asked[first_end:])


def test_an_open_transaction_before_a_result_is_awaited(brokers: Brokers, tmp_path: Path) -> None:
    """Its settled neighbour would look like one without a result."""
    brokers.orders(STAMP)
    brokers.settle("orders", 1)
    brokers.result(0)
    brokers.hidden["clicks.results"] = [0, 0]
    assert audited(brokers, service(tmp_path)).outcomes == {Outcome.RESULT: 1}
    brokers.hidden["clicks.results"] = [0] * 10_000
    with pytest.raises(KworkerError, match="kworker transactions list"):
        audited(brokers, service(tmp_path))


def test_a_missing_topic_is_told_with_the_command(brokers: Brokers, tmp_path: Path) -> None:
    del brokers.records["clicks.requeue"]
    with pytest.raises(ConfigError, match=r"clicks\.requeue; create with: kworker topics create"):
        audited(brokers, service(tmp_path))
