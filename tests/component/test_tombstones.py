"""Records without a value: handled, or with `tombstones = "skip"` settled without a run."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kworker.clients.memory.broker import MemoryKafka
from kworker.core import headers as names
from kworker.instance.crash_journal import CrashJournal
from kworker.message import Message
from kworker.testing import message, run
from kworker.worker.quarantine.quarantine import Quarantine
from kworker.worker.topic_limits import TopicLimits
from tests.support.poll_loop_rig import DEAD, GROUP, REQUEUE, RESULTS, Bench
from tests.support.records import unheard
from tests.support.supervisor_driver import read_config

STAMP = 1_700_000_000_000
SKIP = {"source": {"tombstones": "skip"}}


@pytest.fixture
def kafka() -> MemoryKafka:
    kafka = MemoryKafka(lambda: STAMP / 1000)
    kafka.create("foo")
    kafka.create(RESULTS)
    kafka.create(REQUEUE)
    return kafka


def bench_of(kafka: MemoryKafka, **options: Any) -> Bench:
    return Bench(kafka, ["foo", REQUEUE], **{"skips_tombstones": True, **options})


def committed(kafka: MemoryKafka, topic: str = "foo") -> int | None:
    return kafka.committed(GROUP).get((topic, 0))


@pytest.mark.parametrize("transactional", ["", "orders-0"])
def test_a_skipped_tombstone_is_settled_counted_and_never_run(
    kafka: MemoryKafka, transactional: str
) -> None:
    """With nothing to publish, also where positions are committed by transactions."""
    for value in (None, b"alpha", None):
        kafka.append("foo", value=value, key=b"k")
    bench = bench_of(kafka, transactional=transactional)
    bench.turn(4)
    assert bench.in_hand() == [b"alpha"]
    assert committed(kafka) == 1
    bench.end(b"alpha")
    bench.turn(4)
    assert committed(kafka) == 3
    stats = bench.poll_loop.stats()
    assert (stats.consumed, stats.done, stats.dropped, stats.duplicates) == (3, 1, 2, 0)
    assert (stats.in_flight, stats.in_flight_bytes, stats.failed) == (0, 0, 0)
    assert [*kafka.records(RESULTS), *kafka.records(DEAD)] == []


def test_a_skipped_tombstone_waits_for_no_record_of_its_key(kafka: MemoryKafka) -> None:
    """It has no effect that could come too early; the offset map keeps it done."""
    kafka.append("foo", value=b"slow", key=b"k")
    kafka.append("foo", value=None, key=b"k")
    bench = bench_of(kafka)
    bench.turn(4)
    assert bench.poll_loop.assignment.partitions["foo", 0].ledger.unsettled == 1
    bench.die()
    again = bench_of(kafka, clock=bench.clock)
    again.turn(6)
    assert again.in_hand() == [b"slow"]
    assert (again.poll_loop.stats().remembered, again.poll_loop.stats().dropped) == (1, 0)


def test_an_empty_value_is_no_tombstone(kafka: MemoryKafka) -> None:
    kafka.append("foo", value=b"", key=b"k")
    bench = bench_of(kafka)
    bench.turn(3)
    assert bench.in_hand() == [b""]


def test_an_old_tombstone_is_skipped_and_does_not_expire(kafka: MemoryKafka) -> None:
    """Nothing is to be done for it, and nobody wants it among the dead letters."""
    kafka.append("foo", value=None, key=b"k", timestamp=1)
    bench = bench_of(kafka, max_age_s=3600.0)
    bench.turn(4)
    assert (bench.poll_loop.stats().dropped, kafka.records(DEAD)) == (1, [])


def test_a_retried_tombstone_is_skipped_when_it_comes_back(kafka: MemoryKafka) -> None:
    """So a handler that fails on them is relieved by the setting and a reload."""
    headers = ((names.SOURCE, b"foo/0/9/1"), (names.ATTEMPT, b"2"))
    kafka.append(REQUEUE, value=None, key=b"k", headers=headers)
    kafka.append(REQUEUE, value=b"again", key=b"k", headers=headers)
    bench = bench_of(kafka)
    bench.turn(4)
    assert bench.in_hand() == [b"again"]
    assert (committed(kafka, REQUEUE), bench.poll_loop.stats().dropped) == (1, 1)


def test_a_forged_tombstone_is_a_dead_letter_all_the_same(kafka: MemoryKafka) -> None:
    """A record of the requeue topic that kworker did not write must not vanish."""
    kafka.append(REQUEUE, value=None, key=b"k")
    unheard(kafka, "foo", key=b"k")
    bench = bench_of(kafka)
    bench.turn(4)
    reasons = [dict(raw.headers() or ())[names.REASON] for raw in kafka.records(DEAD)]
    assert sorted(filter(None, reasons)) == [b"undecodable", b"unreadable"]
    assert bench.poll_loop.stats().dropped == 0


def test_a_suspected_tombstone_that_is_skipped_is_no_suspect(
    kafka: MemoryKafka, tmp_path: Path
) -> None:
    """It may have ended its worker before it was skipped."""
    journal = CrashJournal(tmp_path / "suspects")
    journal.add_suspects([("foo", 0, 0)], "crash", "SIGSEGV", 0.0, 10)
    ward = Quarantine(read_config(tmp_path), tmp_path / "suspects", TopicLimits([]))
    kafka.append("foo", value=None, key=b"k")
    bench = bench_of(kafka, quarantine=ward)
    bench.turn(4)
    assert bench.poll_loop.stats().dropped == 1
    assert not ward.isolates_any


def test_by_default_a_tombstone_is_handled(kafka: MemoryKafka) -> None:
    kafka.append("foo", value=None, key=b"k")
    bench = bench_of(kafka, skips_tombstones=False)
    bench.turn(3)
    assert bench.in_hand() == [None]
    assert bench.poll_loop.stats().dropped == 0


# -- as users test it -----------------------------------------------------------------


def test_a_service_in_memory_skips_tombstones_too() -> None:
    seen: list[bytes | None] = []

    def note(given: Message) -> dict[str, int]:
        seen.append(given.value)
        return {"n": 1}

    records = [message(None, key="a"), message(b"x", key="b"), message(None, key="c")]
    report = run(note, records, settings=SKIP)
    assert seen == [b"x"]
    assert [result.source.offset for result in report.results] == [1]
    assert (report.committed, report.dead) == ({("test", 0): 3}, [])
    run(note, records)
    assert seen.count(None) == 2


def test_each_skipped_tombstone_is_logged_for_who_asks() -> None:
    """Nothing is dropped without a trace."""
    with capture_logs() as lines:
        run(lambda _given: None, [message(None, key="a")], settings=SKIP)
    told = [line["source"] for line in lines if line["event"].startswith("tombstone skipped: ")]
    assert [source.rsplit("/", 1)[0] for source in told] == ["test/0/0"]
