"""A paused service, under a real supervisor: its state, its log, its metrics and its probes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bare_service import Service, command, python
from tests.support.console import ConsoleClient
from tests.support.waiting import eventually


def kworker(folder: Path, *arguments: str) -> str:
    """What a command says that succeeds."""
    done = python(*command(folder, *arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


def becomes(service: Service, state: str) -> None:
    eventually(lambda: service.status().get("state") == state, what=f"it is {state}")


@pytest.fixture
def console(service: Service, free_port: Callable[[], int]) -> ConsoleClient:
    port = free_port()
    service.write(settings={"console": {"listen": f"127.0.0.1:{port}"}})
    return ConsoleClient(port)


def test_a_paused_service_says_so_and_is_ready(service: Service, console: ConsoleClient) -> None:
    """Its workers are in the group, and nothing is wrong."""
    service.serve()
    console.comes("/readyz")
    assert "is not running" not in kworker(service.folder, "pause")
    becomes(service, "paused")
    service.says("paused all topics: no more records are taken, and those in hand finish")
    shown = kworker(service.folder, "status")
    assert "orders on test is paused" in shown
    assert "  paused: all topics, since " in shown
    eventually(lambda: console.get("/readyz").json["state"] == "paused", what="the probe knows")
    assert console.get("/readyz").json["ok"]
    metrics = console.get("/metrics").text
    assert 'kworker_topic_paused{topic="orders"} 1.0' in metrics
    assert 'kworker_state{state="paused"} 1.0' in metrics
    kworker(service.folder, "resume")
    becomes(service, "running")
    service.says("resumed all topics: records are taken again")
    eventually(lambda: console.get("/readyz").json["state"] == "running", what="it knows, again")
    changes = [text for _, text in console.get("/page.json").json["events"]]
    assert "the pause of all topics is over" in changes


def test_a_service_starts_paused_and_resumes_by_itself(service: Service) -> None:
    assert "it will start paused" in kworker(service.folder, "pause")
    service.serve()
    becomes(service, "paused")
    kworker(service.folder, "pause", "--for", "1s")
    becomes(service, "running")
    service.says("the time of the pause is over")


def test_a_problem_is_red_also_while_paused(service: Service) -> None:
    """Nobody would look for it behind a pause."""
    service.write(behaviour={"1": {"reasons": ["no broker answers"]}})
    service.serve()
    kworker(service.folder, "pause")
    eventually(lambda: service.status().get("paused"), what="the pause is known")
    assert service.status()["state"] == "red"


def test_a_service_with_one_paused_topic_runs(service: Service) -> None:
    """Retries go on, and other topics."""
    service.serve()
    kworker(service.folder, "pause", "--topic", "orders")
    [row] = service.status()["paused"]
    assert (row["topic"], row["until_ms"]) == ("orders", None)
    assert service.status()["state"] == "running"


def test_a_status_knows_what_was_ordered_before_it(service: Service) -> None:
    """The file of pauses is else read each fifth of a second, which is too late for this."""
    service.serve()
    for _ in range(5):
        kworker(service.folder, "pause", "--topic", "orders")
        assert [row["topic"] for row in service.status()["paused"]] == ["orders"]
        kworker(service.folder, "resume", "--topic", "orders")
        assert service.status()["paused"] == []
