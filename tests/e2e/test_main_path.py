"""The main path on real Kafka: calm runs lose nothing, repeat nothing and keep each key's order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.evidence import gather
from tests.harness.kafka import Writer, numbered
from tests.harness.service import Service, service
from tests.waiting import eventually

KEYS = 500
Topic = Callable[..., str]

SLOWISH = """
import time
from tests.harness.recorded import recorded

@recorded
def handle(message):
    time.sleep(0.004)
    return message.value
"""


@pytest.fixture
def results(topic: Topic) -> str:
    """Where results go; stamped when they are appended, which the client cannot choose."""
    return topic("proof-results", message_timestamp_type="LogAppendTime")


def test_a_calm_run_of_50_000_repeats_nothing_and_keeps_each_keys_order(
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
        assert {len(row["partitions"]) for row in calm.workers().values()} == {4}
        calm.caught_up()
        assert calm.stop() == 0
        calm.is_gone()
    found = gather(calm, writer.acked, results)
    assert len(found.produced) == 50_000
    assert (found.contradictions(), found.repeated) == ({}, [])


@pytest.mark.parametrize(
    "membership",
    [
        {"workers": {"membership": "dynamic"}},
        {"workers": {"membership": "dynamic"}, "kafka": {"group.protocol": "consumer"}},
    ],
    ids=["dynamic", "new-protocol"],
)
def test_other_memberships_are_as_calm(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str, membership: dict[str, Any]
) -> None:
    """There the second worker to join takes partitions that the first may have begun."""
    source = topic("proof", partitions=8)
    workers = {"processes": 2, **membership["workers"]}
    settings = {**membership, "workers": workers, "delivery": {"results": results}}
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(source, numbered(10_000, keys=KEYS))
    with service(tmp_path / "service", bootstrap, [source], settings=settings) as calm:
        calm.serve()
        eventually(lambda: _partitions(calm) == [4, 4], timeout_s=60, what="an even share")
        calm.caught_up()
        assert calm.stop() == 0
        calm.is_gone()
    found = gather(calm, writer.acked, results)
    assert (found.contradictions(), found.repeated) == ({}, [])


def _partitions(running: Service) -> list[int]:
    return [len(row["partitions"]) for row in running.workers().values()]


def test_a_second_instance_that_joins_and_leaves_repeats_nothing(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """A planned revoke lets what is in hand finish: every partition moves twice, under load."""
    source = topic("proof", partitions=8)
    workers = {"processes": 1, "threads": 8}
    settings = {"workers": workers, "delivery": {"results": results}}
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "here", bootstrap, [source], handlers=SLOWISH, settings=settings
    ) as here:
        here.serve()
        with service(
            tmp_path / "there",
            bootstrap,
            [source],
            handlers=SLOWISH,
            settings=settings,
            name=here.name,
            instance="there",
            ledger=here.ledger,
        ) as there:
            writer.write(source, numbered(6_000, keys=KEYS))
            there.serve()
            eventually(lambda: _partitions(here) + _partitions(there) == [4, 4], what="they share")
            eventually(lambda: there.counter("done") > 500, what="the second one works")
            writer.write(source, numbered(6_000, keys=KEYS, first=6_000))
            assert there.worker(0)["in_hand"] > 0, "an invalid run"
            assert there.stop() == 0
            there.is_gone()
        eventually(lambda: _partitions(here) == [8], what="the first one has all again")
        here.caught_up()
        assert here.stop() == 0
        here.is_gone()
    found = gather(here, writer.acked, results)
    assert len({run.pid for run in found.runs}) == 2
    assert (found.contradictions(), found.repeated) == ({}, [])
