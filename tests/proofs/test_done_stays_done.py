"""One record is stuck, thousands of its partition finish: nothing of those is ever run again."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.support import kafka
from tests.support.evidence import Evidence, gather
from tests.support.kafka import New, Writer, numbered
from tests.support.ledgers import Invocation, invocations
from tests.support.service import Service, service, sticking
from tests.support.waiting import eventually

Topic = Callable[..., str]

# For a proof 60; else the stuck record is stuck until the others are done.
STUCK_S = float(os.environ.get("PROOF_STUCK_S", "0"))
MANY, FEW = 50_000, 2_000
THREADS = 8

STICKING = sticking("stuck")
AT_LEAST_ONCE: dict[str, Any] = {}
EXACTLY_ONCE = {"guarantee": "exactly-once"}


@pytest.mark.parametrize(
    "guarantee",
    [
        pytest.param(AT_LEAST_ONCE, id="at-least-once"),
        pytest.param(EXACTLY_ONCE, id="exactly-once"),
    ],
)
@pytest.mark.parametrize("killed", ["worker", "supervisor and worker"])
def test_after_a_kill_only_what_was_in_hand_runs_again(
    tmp_path: Path,
    bootstrap: str,
    topic: Topic,
    results: str,
    killed: str,
    guarantee: dict[str, Any],
) -> None:
    """However many have finished beyond the one that holds the position back."""
    source = topic("proof", partitions=1)
    settings = {
        "workers": {"processes": 1, "threads": THREADS},
        "delivery": {"results": results, **guarantee},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=STICKING, settings=settings
    ) as struck:
        struck.serve()
        began = time.monotonic()
        writer.write(source, [stuck(0)])
        writer.write(source, numbered(MANY, keys=800))
        eventually(lambda: time.monotonic() - began >= STUCK_S, timeout_s=STUCK_S + 1)
        everybody_else_is_done(struck, MANY)
        writer.write(source, map(stuck, range(1, THREADS)))
        struck.handled(2 * MANY + THREADS)
        in_hand = {run.offset for run in invocations(struck.ledger) if not run.ended}
        kill(struck, killed)
        struck.handled(2 * MANY + 2 * THREADS)
        (struck.folder / "released").touch()
        struck.caught_up()
        # Told a moment after it is so.
        struck.until(lambda: struck.counter("remembered") >= MANY, "all are remembered")
        remembered = struck.counter("remembered")
        struck.ends_well()
    exactly_once = guarantee is EXACTLY_ONCE
    found = gather(struck, writer.acked, results, exactly_once=exactly_once)
    again = repeated(found)
    print(f"{len(again)} of {MANY + THREADS} records ran again; {remembered} were remembered")
    assert len(in_hand) == THREADS
    assert again == in_hand
    assert remembered == MANY
    assert found.contradictions() == {}


@pytest.mark.parametrize(
    ("consumer", "membership", "held_up"),
    [
        # The second of two names gets the second partition; everything is given up meanwhile.
        pytest.param({"heartbeat.interval.ms": 500}, "static", [1], id="classic"),
        # What stays is not given up, and nobody knows which it will be.
        pytest.param({"group.protocol": "consumer"}, "dynamic", [0, 1], id="consumer"),
    ],
)
def test_the_next_owner_does_not_repeat_finished_records(
    tmp_path: Path,
    bootstrap: str,
    topic: Topic,
    results: str,
    consumer: dict[str, Any],
    membership: str,
    held_up: list[int],
) -> None:
    """Whoever joins: only the record that did not end in time is run by both."""
    source = topic("proof", partitions=2)
    options: dict[str, Any] = {
        "handlers": STICKING,
        "settings": {
            "workers": {
                "processes": 1,
                "threads": THREADS,
                "revoke_timeout": "1s",
                "membership": membership,
            },
            "delivery": {"results": results},
            "kafka.consumer": consumer,
        },
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(tmp_path / "here", bootstrap, [source], **options) as old:
        old.serve()
        for partition in held_up:
            writer.write(source, [New(f"stuck-{partition}", b"stuck", b"s", partition)])
        for partition in (0, 1):
            writer.write(source, both(partition))
        begun = 2 * 2 * FEW + len(held_up)
        old.handled(begun)
        eventually(
            lambda: [old.finished((source, n)) for n in (0, 1)] == [FEW, FEW],
            what="the group holds all that is done",
        )
        options |= {"name": old.name, "instance": "there", "ledger": old.ledger}
        with service(tmp_path / "there", bootstrap, [source], **options) as new:
            new.serve()
            eventually(lambda: len(new.shares()[0]) == 1, what="it has one")
            [moved] = new.shares()[0]
            old.handled(begun + 1)  # the new owner has begun what is stuck there
            for each in (old, new):
                (each.folder / "released").touch()
            old.caught_up()
            # Told a moment after it is so.
            eventually(lambda: new.counter("remembered") == FEW, what="all are remembered")
            assert new.stop() == 0
        old.ends_well()
    runs = [run for run in invocations(old.ledger) if run.at == moved and run.offset == 0]
    assert len({run.pid for run in runs}) == 2
    assert [run for run in twice(invocations(old.ledger)) if run.offset > 0] == []


def test_a_map_of_another_or_a_damaged_one_is_ignored_and_said(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """It would skip records; so what it may have been about is done again."""
    source = topic("proof", partitions=2)
    settings = {
        "workers": {"processes": 1, "threads": THREADS},
        "delivery": {"results": results},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=STICKING, settings=settings
    ) as misled:
        misled.serve()
        for partition in (0, 1):
            writer.write(source, [New(f"stuck-{partition}", b"stuck", b"s", partition)])
            writer.write(source, both(partition, 20))
        eventually(lambda: [misled.finished((source, n)) for n in (0, 1)] == [20, 20])
        misled.kill_all()
        meddle(bootstrap, misled.name, source)
        misled.serve()
        eventually(lambda: misled.counter("maps_ignored") == 2, what="both are ignored")
        (misled.folder / "released").touch()
        misled.caught_up()
        assert misled.counter("remembered") == 0
        assert "foreign: not written by kworker" in misled.said()
        assert "damaged: its check sum does not match" in misled.said()
        assert misled.stop() == 0
    runs = [run.position for run in invocations(misled.ledger)]
    assert sorted(set(runs)) == sorted(record.position for record in writer.acked)
    assert len(runs) == 2 * 2 * 21


def stuck(number: int) -> New:
    return New(f"stuck-{number}", b"stuck-%d" % number, b"stuck-%d" % number)


def both(partition: int, count: int = FEW) -> Iterator[New]:
    for n in range(count):
        yield New(f"{partition}-{n}", b"%d" % n, b"%d" % (n % 100), partition)


def everybody_else_is_done(running: Service, count: int) -> None:
    """And the group holds it, by a map: the position is that of the one that is stuck."""
    source = running.topics[0]
    eventually(
        lambda: running.finished((source, 0)) == count,
        timeout_s=120.0,
        every_s=0.1,
        what="the group holds all that is done",
    )
    assert running.committed()[source, 0] == 0


def kill(struck: Service, what: str) -> None:
    """And sees to it that another begins."""
    if what == "worker":
        struck.kill_worker(0)
        return
    struck.kill_all()
    struck.serve()


def meddle(bootstrap: str, group: str, source: str) -> None:
    """Writes into the group what another tool might, and what a fault of a disk might."""
    zero, one = kafka.held_of(bootstrap, group, source)
    text = one.metadata
    assert text
    at = len(text) - 8
    damaged = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
    written = [
        TopicPartition(source, 0, zero.offset, metadata="checkpoint-7"),
        TopicPartition(source, 1, one.offset, metadata=damaged),
    ]
    kafka.commit(bootstrap, group, written)


def twice(runs: list[Invocation]) -> list[Invocation]:
    """Of records that ran more than once, every run after the first."""
    seen = set()
    again = []
    for run in runs:
        if run.position in seen:
            again.append(run)
        seen.add(run.position)
    return again


def repeated(found: Evidence) -> set[int]:
    return {again.offset for _, again in found.repeated}
