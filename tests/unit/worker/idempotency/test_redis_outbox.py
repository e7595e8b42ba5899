"""Updates for Redis: how many go in a call, and files of them that cannot be used."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kworker.core.claim import ClaimDone, Claimed, HandOver
from kworker.core.record import Partition
from kworker.worker.idempotency.redis_outbox import RedisOutbox
from tests.support.claims_rig import Bench, Worker, event
from tests.support.records import a_partition


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "marks")


@pytest.fixture
def orders() -> Partition:
    return a_partition("orders", 0)


def with_done(bench: Bench, orders: Partition, owner: str = "host/1") -> Worker:
    """A worker that has done the event `e`, and has not told Redis yet."""
    worker = bench.worker(owner)
    record = event(orders, 1, "e")
    worker.runs(record)
    bench.redis.away = True
    worker.claimant.settled([record])
    worker.step()
    return worker


def left_by(bench: Bench, orders: Partition, owner: str) -> Path:
    """The file in which such a worker has left its updates at its end."""
    with_done(bench, orders, owner).end()
    bench.redis.away = False
    [file] = bench.folder.iterdir()
    return file


def errors(lines: Iterable[Mapping[str, object]]) -> list[str]:
    return [str(line["event"]) for line in lines if line["log_level"] == "error"]


def test_updates_reach_redis_though_no_file_can_be_written(bench: Bench, orders: Partition) -> None:
    """The disk is full: Redis may answer all the same."""
    worker = with_done(bench, orders)
    bench.redis.away = False
    bench.folder.touch()  # no folder can be made in its place
    with capture_logs() as lines:
        worker.end()
    assert bench.state("e") == ClaimDone()
    assert worker.claiming.failure is None
    [problem] = errors(lines)
    assert "cannot be written to state_dir" in problem


def test_updates_that_nobody_has_are_logged_as_lost(bench: Bench, orders: Partition) -> None:
    """Neither the disk nor Redis takes them: the next start has nothing to send."""
    worker = with_done(bench, orders)
    bench.folder.touch()
    with capture_logs() as lines:
        worker.end()
    [last] = [str(line["event"]) for line in lines if line["log_level"] == "warning"]
    assert last.endswith("it lacks are lost, and their events may run again")


def test_a_failed_write_leaves_no_draft(
    bench: Bench, orders: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written so far would keep a full disk full."""
    worker = with_done(bench, orders)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    worker.end()
    assert list(bench.folder.iterdir()) == []


def test_a_file_that_cannot_be_read_ends_no_worker(bench: Bench, orders: Partition) -> None:
    """It belongs to root, say. The dead owner's claim is taken over, as if there were no file."""
    file = left_by(bench, orders, "host/1")
    file.unlink()
    file.mkdir()
    with capture_logs() as lines:
        neighbour = bench.worker("host/2")
        neighbour.marks.load()
        again = event(orders, 1, "e")
        assert neighbour.runs(again) == [again]
    assert bench.state("e") == Claimed("host/2", "orders/0/1")
    [problem] = errors(lines)
    assert "cannot be read or removed" in problem


def test_a_file_that_cannot_be_removed_is_sent_once(bench: Bench, orders: Partition) -> None:
    """Loaded again and again, it would keep its owner's claims from every takeover."""
    file = left_by(bench, orders, "host/1")
    neighbour = bench.worker("host/2")
    neighbour.marks.load()
    file.unlink()
    file.mkdir()
    with capture_logs() as lines:
        neighbour.wait(20.0)
    assert bench.state("e") == ClaimDone()
    assert len(errors(lines)) == 1
    assert not neighbour.marks.load_of("host/1")
    file.rmdir()
    neighbour.wait(20.0)
    assert neighbour.marks._files == set()


@pytest.mark.parametrize(("size", "calls"), [(100, 1), (87_400, 5)])
def test_small_outcomes_are_sent_together(tmp_path: Path, size: int, calls: int) -> None:
    """A drain has seconds for thousands; but of large ones, Redis would serve a call for long."""
    outbox = RedisOutbox(tmp_path, "host/1")
    for i in range(40):
        outbox.add_outcome(HandOver(f"e{i}", Claimed("host/1", f"orders/0/{i}"), "x" * size))
    sent = []
    while len(outbox):
        assert outbox.needs_calls == (len(sent) < calls - 1)
        sent.append(outbox.next())
        outbox.delivered(sent[-1])
    assert len(sent) == calls
    assert [update.id for ask in sent for update in ask.ended] == [f"e{i}" for i in range(40)]
