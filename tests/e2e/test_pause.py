"""`kworker pause` and `resume` on real Kafka: a topic stands still, and then nothing is missing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.evidence import gather
from tests.support.feeding import Feeding
from tests.support.kafka import Writer, numbered
from tests.support.ledgers import invocations
from tests.support.service import Service, lasting, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

MORE = 300  # records of the other topic, while one stands still
SLOWISH = lasting(0.004)


def handled(of: Service, topic: str) -> int:
    """How many runs of its records have begun, in all lives of the service."""
    return sum(run.at[0] == topic for run in invocations(of.ledger))


def settled(of: Service, topic: str) -> bool:
    """What was in hand of a topic has ended, and is committed."""
    done = sum(position for at, position in of.committed().items() if at[0] == topic)
    return done == handled(of, topic)


def paused(of: Service) -> list[str]:
    return [row["topic"] for row in of.status().get("paused", [])]


def waiting(of: Service) -> int:
    """How many records of the group wait in Kafka; 0 while that is not known."""
    return int(of.status().get("lag", {}).get("records") or 0)


def typed(of: Service, *words: str) -> str:
    """What a command says that succeeds."""
    done = of.command(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_topic_stands_still_under_load_and_over_restarts(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str, guarantee: str
) -> None:
    """The other topic goes on, whatever happens to the workers; in the end nothing is missing."""
    still, moving = topic("still", partitions=4), topic("moving", partitions=4)
    settings: dict[str, Any] = {
        "workers": {"processes": 2, "threads": 8},
        "delivery": {"results": results, "guarantee": guarantee},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    load = Feeding(writer, still, moving, portion=20)
    with service(
        tmp_path / "service", bootstrap, [still, moving], handlers=SLOWISH, settings=settings
    ) as live:

        def goes_on(what: str) -> None:
            count = handled(live, moving) + MORE
            load.until(lambda: handled(live, moving) >= count, f"it goes on {what}")

        live.serve()
        load.until(lambda: min(handled(live, t) for t in (still, moving)) > MORE, "both are read")
        rebalances = live.counter("rebalances")
        said = typed(live, "pause", "--topic", still)
        assert f"{still} paused until `kworker resume`; records in hand finish" in said
        load.until(lambda: paused(live) == [still], "it is told")
        goes_on("when the pause has begun")
        load.until(lambda: settled(live, still), "what was in hand has ended")
        stopped_at = handled(live, still)
        goes_on("beside the paused topic")
        assert f"paused: {still}, since " in typed(live, "status")
        assert (live.state(), live.counter("rebalances")) == ("running", rebalances)
        live.kill_worker(0)
        goes_on("after a kill")
        typed(live, "restart")
        goes_on("after a rolling restart")
        live.ends_well()
        live.serve()
        goes_on("after a new start")
        assert handled(live, still) == stopped_at
        said = typed(live, "resume", "--topic", still)
        assert f"{still} resumed" in said
        load.until(lambda: handled(live, still) > stopped_at, "it is read again")
        assert paused(live) == []
        writer.finish()
        live.caught_up()
        live.ends_well()
    found = gather(live, writer.acked, results, exactly_once=guarantee == "exactly-once")
    assert found.contradictions() == {}


def test_a_start_during_a_pause_takes_nothing_until_the_pause_ends(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """It was ordered while nothing ran; it ends by itself, and a drain before that is quick."""
    source = topic("proof", partitions=4)
    settings = {"workers": {"processes": 2}, "delivery": {"results": results}}
    writer = Writer(bootstrap, tmp_path / "produced")
    writer.write(source, numbered(2_000, keys=500))
    with service(tmp_path / "service", bootstrap, [source], settings=settings) as calm:
        assert "is not running here; it will start paused" in typed(calm, "pause")
        calm.start()
        eventually(lambda: calm.state() == "paused", timeout_s=60, what="it is paused")
        document = json.loads(typed(calm, "status", "--json"))
        assert [row["phase"] for row in document["workers"]] == ["running"] * 2
        calm.until(lambda: waiting(calm) == 2_000, "its lag is known")
        calm.ends_well()
        calm.start()
        eventually(lambda: calm.state() == "paused", timeout_s=60, what="it is paused again")
        calm.until(lambda: waiting(calm) == 2_000, "its lag is known again")
        assert handled(calm, source) == 0
        typed(calm, "pause", "--for", "2s")
        calm.is_running()
        calm.caught_up()
        assert "the time of the pause is over" in calm.said()
        calm.ends_well()
    found = gather(calm, writer.acked, results)
    assert (found.contradictions(), found.repeated) == ({}, [])


RAISES_ONCE = """
from tests.support.recorded import recorded

@recorded
def handle(message):
    if message.attempt == 1:
        raise ConnectionError("not yet")
    return message.value
"""


def test_retries_wait_in_the_requeue_topic_while_all_is_paused(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """The delay process goes on: a retry comes to the requeue topic, and no further."""
    source = topic("proof", partitions=1)
    settings = {
        "workers": {"processes": 1},
        "delivery": {"results": results},
        "retry": {"delays": ["5s"]},
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(
        tmp_path / "service", bootstrap, [source], handlers=RAISES_ONCE, settings=settings
    ) as failing:
        failing.serve()
        writer.write(source, numbered(20, keys=20))
        failing.until(lambda: failing.counter("retried") == 20, "all have failed")
        typed(failing, "pause")
        failing.until(lambda: failing.state() == "paused", "it is paused")
        assert handled(failing, source) == 20, "the pause came too late for this test"
        failing.until(lambda: waiting(failing) >= 20, "all have come again")
        assert handled(failing, source) == 20
        typed(failing, "resume")
        failing.until(lambda: failing.counter("done") == 20, "all are done")
        failing.ends_well()
    assert handled(failing, source) == 40
