"""SIGTERM with handlers at work: what has begun ends, within the time, and nothing else begins."""

import signal
from collections.abc import Callable
from pathlib import Path

from tests.support.evidence import gather
from tests.support.kafka import New, Writer, numbered
from tests.support.ledgers import Fault, invocations, now_ns
from tests.support.service import ECHO, Service, lasting, service, sticking
from tests.support.waiting import eventually

Topic = Callable[..., str]

EXIT_DRAIN_TIMED_OUT = 75
SECOND = lasting(1)
STUCK = sticking("0")  # of numbered records only the first


def test_64_busy_handlers_drain_without_loss_or_repeat(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """The next start begins exactly behind what the last one began."""
    source = topic("proof", partitions=4)
    settings = {
        "workers": {"processes": 2, "threads": 32, "drain_timeout": "10s"},
        "delivery": {"results": results},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(source, numbered(5_000, keys=5_000))
    with service(
        tmp_path / "service", bootstrap, [source], handlers=SECOND, settings=settings
    ) as drained:
        drained.serve()
        eventually(lambda: at_work(drained) == 64, timeout_s=60, what="64 handlers are at work")
        assert drained.stop() == 0  # within the time, or it would be 75
        drained.is_gone()
        runs = invocations(drained.ledger)
        assert [run for run in runs if not run.ended] == [], "cut off"
        assert len(runs) < 1_000, "the backlog was drained, not the service"
        drained.write_handlers(ECHO)
        drained.serve()
        drained.caught_up()
        drained.ends_well()
    found = gather(drained, writer.acked, results)
    assert (found.contradictions(), found.repeated) == ({}, [])


def test_a_drain_leaves_a_long_handlers_record_to_come_again(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """The exit code says so; what finished meanwhile is lost no more than what did not."""
    source = topic("proof", partitions=2)
    settings = {
        "workers": {"processes": 1, "threads": 4, "drain_timeout": "3s"},
        "delivery": {"results": results},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=STUCK, settings=settings
    ) as left:
        left.serve()
        writer.write(source, numbered(200, keys=200))
        left.handled(399)  # all to their end, but for record 0
        pid = left.worker(0)["pid"]
        began = now_ns()
        assert left.stop() == EXIT_DRAIN_TIMED_OUT
        left.is_gone()
        left.faults.add(Fault("drain timed out", pid, 0, (), began, now_ns(), in_hand=1))
        (left.folder / "released").touch()
        left.serve()
        left.caught_up()
        left.ends_well()
    found = gather(left, writer.acked, results)
    names = {record.position: record.identity for record in writer.acked}
    assert "0" in {names[again.position] for _, again in found.repeated}
    assert {again.at for _, again in found.repeated} == {
        record.at for record in writer.acked if record.identity == "0"
    }, "the other partition was committed whole"
    assert found.contradictions() == {}


def test_a_second_sigterm_is_ignored_and_a_second_sigint_ends(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Impatience of a service manager is not an order; a person's second Ctrl-C is."""
    settings = {"workers": {"processes": 1, "threads": 4, "drain_timeout": "60s"}}
    source = topic("proof", partitions=2)
    with service(
        tmp_path / "service", bootstrap, [source], handlers=STUCK, settings=settings
    ) as asked:
        asked.serve()
        Writer(bootstrap, tmp_path / "produced").write(source, [New("0", b"0")])
        asked.handled(1)
        asked.signal(signal.SIGTERM)
        asked.signal(signal.SIGTERM)
        eventually(lambda: asked.state() == "draining", what="it drains")
        # Two that are pending at once are one.
        eventually(lambda: asked.interrupted(), timeout_s=10, every_s=0.5, what="the end")
        assert asked.exit_code() == EXIT_DRAIN_TIMED_OUT
        asked.is_gone(10)


def at_work(running: Service) -> int:
    """How many handlers have begun and not ended."""
    return sum(run.end_ns is None for run in invocations(running.ledger))
