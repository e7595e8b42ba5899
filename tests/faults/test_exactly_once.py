"""Exactly once under `kill -9`: what read_committed sees is each result once, whole or not."""

import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.support.evidence import gather
from tests.support.kafka import Writer, ends, numbered, visible_ends
from tests.support.ledgers import At
from tests.support.service import OTHER_HOST, Service, lasting, service
from tests.support.waiting import eventually, repeated

Topic = Callable[..., str]

RECORDS = 5_000
STREAM, MORE = 1_000_000, 50  # at most, and where a worker has little to do
FEW = 500
KILLS = 6
BUSY = 20  # records in hand, as last told
WORKERS = 2
LIMIT_MS = int(os.environ.get("PROOF_TRANSACTION_MS", "3000"))  # for a proof 30000, the default
LOOK_S = 10.0  # brokers look so often for transactions whose time is over

SLOWISH = lasting(0.003)


def test_workers_that_are_killed_publish_each_result_once(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """An outcome and the position behind it are in one transaction, or in none."""
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
        stream = numbered(STREAM, keys=500)
        writer.begin(source, islice(stream, RECORDS))

        def at_work(slot: int) -> bool:
            """It has much in hand; else there will be more for it."""
            row = struck.worker(slot)
            if row["in_hand"] <= BUSY:
                writer.begin(source, islice(stream, MORE))
            return row["in_hand"] > BUSY and row["pid"] not in struck.killed

        for turn in range(KILLS):
            slot = turn % WORKERS
            eventually(partial(at_work, slot), every_s=0.01, what=f"{slot} is at work")
            struck.kill_worker(slot)
        writer.finish()
        struck.caught_up()
        struck.ends_well()
    found = gather(struck, writer.acked, results, exactly_once=True)
    assert len(found.results) == len(writer.acked) >= RECORDS
    assert found.repeated, "an invalid run: nothing was in hand when they died"
    assert found.contradictions() == {}


@pytest.mark.parametrize(
    ("gone", "limit_ms", "bound_s"),
    [
        pytest.param("worker", 30_000, 10.0, id="a worker"),
        pytest.param("host", LIMIT_MS, LIMIT_MS / 1000 + LOOK_S + 2, id="a host"),
    ],
)
def test_readers_wait_briefly_for_a_killed_workers_transaction(
    tmp_path: Path,
    bootstrap: str,
    topic: Topic,
    results: str,
    gone: str,
    limit_ms: int,
    bound_s: float,
) -> None:
    """The next producer with its id ends it; if none comes, its own time-out does."""
    source = topic("exactly", partitions=2)
    settings = {
        "workers": {"processes": 1, "threads": 8},
        "delivery": {"results": results, "guarantee": "exactly-once", "commit_interval": "1500ms"},
        "kafka.producer": {"transaction.timeout.ms": limit_ms},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=SLOWISH, settings=settings
    ) as struck:

        def left_open(turn: int) -> dict[At, int]:
            """What is written when it is gone, if some of that is hidden by then."""
            if struck.process is None or gone == "host":
                struck.serve()
            writer.write(source, numbered(RECORDS, keys=500, first=turn * RECORDS))
            eventually(lambda: _hidden(bootstrap, results), every_s=0.01, what="one is open")
            if gone == "worker":
                struck.kill_worker(0)
            else:
                struck.kill_all()
            written = ends(bootstrap, results)
            return written if _hidden(bootstrap, results) else {}

        written = repeated(left_open, bool, what="a kill that leaves a transaction open")
        began = time.monotonic()
        eventually(
            lambda: all(visible_ends(bootstrap, results)[at] >= written[at] for at in written),
            timeout_s=bound_s,
            what="readers go on",
        )
        print(f"readers waited {time.monotonic() - began:.1f} s")


def _hidden(bootstrap: str, topic: str) -> bool:
    """Whether something is written that readers wait for."""
    seen = visible_ends(bootstrap, topic)
    return any(seen[at] < end for at, end in ends(bootstrap, topic).items())


def test_one_of_two_services_with_one_identity_ends_and_says_why(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """Each would fence the other for ever. The other does what the one had in hand.

    The group tells nothing of dynamic members on two hosts, so only transactions do.
    It is the second that ends, unless it came so soon that both have as little patience. Who
    is fenced learns of it when it writes.
    """
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
        options |= {"name": one.name, "ledger": one.ledger, "prelude": OTHER_HOST}
        with service(tmp_path / "other", bootstrap, [source], **options) as other:
            other.serve()
            eventually(lambda: all([*one.shares(), *other.shares()]), what="both have one")
            firsts = itertools.count(FEW, FEW)

            def contended() -> tuple[Service, Service] | None:
                writer.write(source, numbered(FEW, keys=500, first=next(firsts)))
                return _ended(one, other) or _ended(other, one)

            loser, winner = eventually(contended, timeout_s=60, every_s=0.5, what="one ends")
            assert loser.exit_code() == 73
            assert "another process took the transactional id" in loser.said()
            winner.caught_up()
            assert winner.stop() == 0
    found = gather(one, writer.acked, results, exactly_once=True)
    assert len(found.results) == len(writer.acked)
    assert found.contradictions().keys() <= {"repeated without a cause", "out of order"}


def _ended(one: Service, other: Service) -> tuple[Service, Service] | None:
    """Both, if the one has ended."""
    assert one.process
    return None if one.process.poll() is None else (one, other)
