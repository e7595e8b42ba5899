"""Exactly once under `kill -9`: what read_committed sees is each result once, whole or not."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.harness.evidence import gather
from tests.harness.kafka import Writer, numbered
from tests.harness.ledgers import Fault, now_ns
from tests.harness.service import Service, service
from tests.waiting import eventually

Topic = Callable[..., str]

RECORDS = 5_000
FEW = 500
KILLS = 6
BUSY = 20  # records in hand, as last told
WORKERS = 2

SLOWISH = """
import time
from tests.harness.recorded import recorded

@recorded
def handle(message):
    time.sleep(0.003)
    return message.value
"""


def test_workers_that_are_killed_publish_each_result_once(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """P2: an outcome and the position behind it are in one transaction, or in none."""
    source = topic("exactly", partitions=2 * WORKERS)
    settings = {
        "workers": {"processes": WORKERS, "threads": 8},
        "delivery": {"results": results, "guarantee": "exactly-once"},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=SLOWISH, settings=settings
    ) as struck:
        struck.serve()
        writer.begin(source, numbered(RECORDS, keys=500))
        for turn in range(KILLS):
            slot = turn % WORKERS
            eventually(partial(_at_work, struck, slot), every_s=0.01, what=f"{slot} at work")
            struck.kill_worker(slot)
        writer.finish()
        struck.caught_up()
        assert struck.stop() == 0
        struck.is_gone()
    found = gather(struck, writer.acked, results, exactly_once=True)
    assert len(found.results) == RECORDS
    assert found.repeated, "an invalid run: nothing was in hand when they died"
    assert found.contradictions() == {}


def _at_work(struck: Service, slot: int) -> bool:
    return bool(struck.worker(slot)["in_hand"] > BUSY)


def test_a_worker_that_was_stopped_for_longer_than_its_session_makes_nothing_visible(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """P9: its open transaction is of no use any more; what was in it is others' to do."""
    source = topic("exactly", partitions=2 * WORKERS)
    settings = {
        "workers": {"processes": WORKERS, "threads": 8, "membership": "dynamic"},
        "delivery": {"results": results, "guarantee": "exactly-once", "commit_interval": "2s"},
        "kafka.consumer": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=SLOWISH, settings=settings
    ) as struck:
        struck.serve()
        eventually(lambda: all(struck.shares()), what="both have some")
        writer.begin(source, numbered(RECORDS, keys=500))
        eventually(partial(_at_work, struck, 0), every_s=0.01, what="it is at work")
        fault = _stop(struck, 0)
        eventually(lambda: len(struck.shares()[1]) == 2 * WORKERS, what="the other has all")
        os.kill(fault.pid, signal.SIGCONT)
        struck.faults.add(replace(fault, to_ns=now_ns()))
        writer.finish()
        struck.caught_up()
        assert struck.worker(0)["pid"] == fault.pid
        assert struck.stop() == 0
        struck.is_gone()
    found = gather(struck, writer.acked, results, exactly_once=True)
    assert len(found.results) == RECORDS
    assert found.repeated, "an invalid run: nothing was in hand when it was stopped"
    assert found.contradictions() == {}


def test_of_two_services_with_one_identity_the_first_ends_and_says_why(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """Fault 23: each would fence the other for ever. What the first had in hand, the other does."""
    source = topic("exactly", partitions=2)
    options: dict[str, Any] = {
        "handlers": SLOWISH,
        "settings": {
            "workers": {"processes": 1, "threads": 8, "membership": "dynamic"},
            "delivery": {"results": results, "guarantee": "exactly-once"},
        },
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(tmp_path / "one", bootstrap, [source], **options) as one:
        one.serve()
        writer.write(source, numbered(FEW, keys=500))
        one.caught_up()
        options |= {"name": one.name, "ledger": one.ledger}
        with service(tmp_path / "other", bootstrap, [source], **options) as other:
            other.serve()
            eventually(lambda: all([*one.shares(), *other.shares()]), what="both have one")
            writer.write(source, numbered(FEW, keys=500, first=FEW))
            assert one.exit_code() == 73
            assert "its transactional id is used by another process" in one.said()
            other.caught_up()
            assert other.stop() == 0
    found = gather(one, writer.acked, results, exactly_once=True)
    assert len(found.results) == 2 * FEW
    assert found.contradictions().keys() <= {"repeated without a cause", "out of order"}


def _stop(struck: Service, slot: int) -> Fault:
    """SIGSTOP, until somebody continues it."""
    row = struck.worker(slot)
    partitions = tuple((topic, partition) for topic, partition in row["partitions"])
    from_ns = now_ns()
    os.kill(row["pid"], signal.SIGSTOP)
    return Fault("stopped", row["pid"], slot, partitions, from_ns, from_ns, row["in_hand"])
