"""`kill -9` of the supervisor: no worker outlives it for long, and the next start goes on."""

from collections.abc import Callable
from pathlib import Path

from tests.support.evidence import gather
from tests.support.kafka import Writer, numbered
from tests.support.service import lasting, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

DRAIN_S = 10
SLOW = lasting(0.5)


def test_workers_of_a_killed_supervisor_drain_without_repeats(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """They finish what is in hand and commit it; a start meanwhile waits for them."""
    source = topic("proof", partitions=4)
    settings = {
        "workers": {"processes": 2, "threads": 16, "drain_timeout": f"{DRAIN_S}s"},
        "delivery": {"results": results},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=SLOW, settings=settings
    ) as orphaned:
        writer.write(source, numbered(2_000, keys=1_000))
        orphaned.serve()
        orphaned.handled(40)
        workers = set(orphaned.worker_pids().values())
        fault = orphaned.kill_supervisor()
        assert fault.in_hand > 0, "an invalid run"
        orphaned.write_handlers(lasting(0.001))
        orphaned.start()
        eventually(
            lambda: not workers & {process.pid for process in orphaned.processes()},
            timeout_s=DRAIN_S,
            what="the first workers are gone",
        )
        orphaned.is_running()
        orphaned.caught_up()
        orphaned.ends_well()
    found = gather(orphaned, writer.acked, results)
    assert [run for run in found.runs if run.end_ns is None] == [], "cut off, not drained"
    assert (found.contradictions(), found.repeated) == ({}, [])


def test_workers_of_a_killed_supervisor_end_without_a_new_start(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """Nobody has to come by for them to end, not even when they have nothing to do."""
    settings = {"delivery": {"results": results}, "workers": {"processes": 2}}
    with service(tmp_path / "service", bootstrap, [topic("proof")], settings=settings) as orphaned:
        orphaned.serve()
        orphaned.kill_supervisor()
        orphaned.is_gone(DRAIN_S)
