"""What a service in trouble shows to Prometheus is what the alerts of etc/alerts.yml wait for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kworker.sandbox import Sandbox
from tests.support.alerts import Phase, contradiction
from tests.support.console import ConsoleClient
from tests.support.kafka import Writer, create_topic, numbered
from tests.support.service import service
from tests.support.waiting import eventually

FreePort = Callable[[], int]
LETTERS = 300
REFUSING = """
from kworker import Reject

def handle(message):
    raise Reject("no such customer")
"""
PAGE, TICKET = {"severity": "page"}, {"severity": "ticket"}


def test_brokers_that_do_not_answer_page(
    tmp_path: Path, own_sandbox: Callable[..., Sandbox], free_port: FreePort
) -> None:
    """And while they answer, nothing fires."""
    sandbox, port = own_sandbox(redis=False), free_port()
    source = create_topic(sandbox.bootstrap, "orders", 4)
    settings = {"console": {"listen": f"127.0.0.1:{port}"}}
    with service(tmp_path / "service", sandbox.bootstrap, [source], settings=settings) as waiting:
        console = ConsoleClient(port)
        waiting.serve()
        Writer(sandbox.bootstrap, tmp_path / "produced").write(source, numbered(100, keys=10))
        waiting.caught_up()
        eventually(lambda: lag_is_known(console), what="the lag is known")
        well = console.comes("/metrics").text
        sandbox.stop_broker(1)
        eventually(lambda: waiting.state() == "red", timeout_s=60, what="the status is red")
        eventually(lambda: not lag_is_known(console), timeout_s=60, what="the lag is not known")
        away = console.comes("/metrics").text
        sandbox.start_broker(1)
        waiting.is_running()
        eventually(lambda: lag_is_known(console), timeout_s=60, what="the lag is known again")
        again = console.comes("/metrics").text
        waiting.ends_well()
    fires = {"KworkerRed": PAGE, "KworkerLagUnknown": TICKET}
    assert contradiction(tmp_path, [Phase(well, 10), Phase(away, 20)], fires) == ""
    assert contradiction(tmp_path, [Phase(well, 60), Phase(again, 60)], {}) == ""
    assert contradiction(tmp_path, [Phase(well, 10), Phase(away, 4), Phase(again, 60)], {}) == ""


def test_a_flood_of_dead_letters_pages(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], free_port: FreePort
) -> None:
    """The breaker is off; else it would hold them back, and the service would be red."""
    source, port = topic("refused", partitions=4), free_port()
    settings: dict[str, dict[str, Any]] = {
        "console": {"listen": f"127.0.0.1:{port}"},
        "dead_letter": {"breaker": ""},
    }
    with service(
        tmp_path / "service", bootstrap, [source], handlers=REFUSING, settings=settings
    ) as refusing:
        console = ConsoleClient(port)
        refusing.serve()
        before = console.comes("/metrics").text
        Writer(bootstrap, tmp_path / "produced").write(source, numbered(LETTERS, keys=50))
        refusing.caught_up()
        eventually(lambda: refusing.counter("dead") == LETTERS, what="all are dead letters")
        after = console.comes("/metrics").text
        refusing.ends_well()
    fires = {
        "KworkerDeadLetters": {**TICKET, "reason": "rejected"},
        "KworkerDeadLettersFlood": PAGE,
    }
    assert contradiction(tmp_path, [Phase(before, 10), Phase(after, 20)], fires) == ""
    assert contradiction(tmp_path, [Phase(before, 60)], {}) == ""


def lag_is_known(console: ConsoleClient) -> bool:
    return "\nkworker_lag_records " in console.get("/metrics").text
