"""The main path on real Kafka: calm runs lose nothing, repeat nothing and keep each key's order."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.evidence import gather
from tests.support.feeding import KEYS, Feeding
from tests.support.kafka import Writer, numbered
from tests.support.service import ECHO, Service, lasting, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

SLOWISH = lasting(0.004)
DYNAMIC = {"membership": "dynamic"}
AWAITING = """
import asyncio
from tests.support.recorded import recorded_async

@recorded_async
async def handle(message):
    await asyncio.sleep(0.01)
    return message.value
"""


def test_a_calm_run_of_50_000_repeats_nothing_in_key_order(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """Two workers join at boot, with records already waiting and more coming meanwhile."""
    source = topic("proof", partitions=8)
    settings = {"workers": {"processes": 2}, "delivery": {"results": results}}
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(tmp_path / "service", bootstrap, [source], settings=settings) as calm:
        writer.write(source, numbered(20_000, keys=KEYS))
        calm.start()
        writer.write(source, numbered(30_000, keys=KEYS, first=20_000))
        calm.is_running()
        eventually(lambda: _partitions(calm) == [4, 4], what="an even share")
        calm.caught_up()
        calm.ends_well()
    found = gather(calm, writer.acked, results)
    assert len(found.produced) == 50_000
    assert (found.contradictions(), found.repeated) == ({}, [])


@pytest.mark.parametrize(
    ("handlers", "workers", "more"),
    [
        # A loop of many handlers at once instead of threads.
        pytest.param(AWAITING, {}, {}, id="async"),
        # The second worker to join takes partitions that the first may have begun.
        pytest.param(ECHO, DYNAMIC, {}, id="dynamic"),
        pytest.param(ECHO, DYNAMIC, {"kafka": {"group.protocol": "consumer"}}, id="new-protocol"),
    ],
)
def test_a_calm_run_of_any_pool_or_membership_repeats_nothing(
    tmp_path: Path,
    bootstrap: str,
    topic: Topic,
    results: str,
    handlers: str,
    workers: dict[str, Any],
    more: dict[str, Any],
) -> None:
    """What is promised is the same."""
    source = topic("proof", partitions=8)
    settings = {"workers": {"processes": 2, **workers}, "delivery": {"results": results}, **more}
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(source, numbered(10_000, keys=KEYS))
    with service(
        tmp_path / "service", bootstrap, [source], handlers=handlers, settings=settings
    ) as calm:
        calm.serve()
        eventually(lambda: _partitions(calm) == [4, 4], timeout_s=60, what="an even share")
        calm.caught_up()
        calm.ends_well()
    found = gather(calm, writer.acked, results)
    assert (found.contradictions(), found.repeated) == ({}, [])


def _partitions(running: Service) -> list[int]:
    return [len(share) for share in running.shares()]


def test_a_second_instance_that_joins_and_leaves_repeats_nothing(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """A planned revoke lets what is in hand finish: every partition moves, under a steady load."""
    source = topic("proof", partitions=8)
    options: dict[str, Any] = {
        "handlers": SLOWISH,
        "settings": {
            "workers": {"processes": 1, "threads": 8},
            "delivery": {"results": results},
            "kafka.consumer": {"heartbeat.interval.ms": 500},  # to hear soon of the other
        },
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    feeding = Feeding(writer, source)
    with service(tmp_path / "here", bootstrap, [source], **options) as here:
        here.serve()
        options |= {"name": here.name, "instance": "there", "ledger": here.ledger}
        with service(tmp_path / "there", bootstrap, [source], **options) as there:
            there.start()
            feeding.until(lambda: _partitions(here) + _partitions(there) == [4, 4], "they share")
            feeding.until(lambda: there.counter("done") > 500, "the second one works")
            feeding.until(lambda: there.worker(0)["in_hand"] > 0, "it has some in hand")
            there.signal(signal.SIGTERM)
            feeding.until(lambda: not there.processes(), "it is gone")
            assert there.exit_code() == 0
        feeding.until(lambda: _partitions(here) == [8], "the first one has all again")
        writer.finish()
        here.caught_up()
        here.ends_well()
    found = gather(here, writer.acked, results)
    assert len({run.pid for run in found.runs}) == 2
    assert (found.contradictions(), found.repeated) == ({}, [])
