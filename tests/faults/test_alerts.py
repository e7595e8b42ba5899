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
    """While they answer, or are away for three minutes only, nothing fires."""
    sandbox, port = own_sandbox(redis=False), free_port()
    source = create_topic(sandbox.bootstrap, "orders", 4)
    settings = {"console": {"listen": f"127.0.0.1:{port}"}}
    with service(tmp_path / "service", sandbox.bootstrap, [source], settings=settings) as waiting:
        console = ConsoleClient(port)
        waiting.serve()
        Writer(sandbox.bootstrap, tmp_path / "produced").write(source, numbered(100, keys=10))
        waiting.caught_up()
        well = scraped(console, lag_is_known)
        sandbox.stop_broker(1)
        away = scraped(console, lambda text: is_red(text) and not lag_is_known(text))
    fires = {"KworkerRed": PAGE, "KworkerLagUnknown": TICKET}
    assert contradiction(tmp_path, [Phase(well, 10), Phase(away, 20)], fires) == ""
    assert contradiction(tmp_path, [Phase(well, 60)], {}) == ""
    assert contradiction(tmp_path, [Phase(well, 10), Phase(away, 3), Phase(well, 60)], {}) == ""


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
        before = scraped(console, lag_is_known)
        Writer(bootstrap, tmp_path / "produced").write(source, numbered(LETTERS, keys=50))
        letters = f'kworker_dead_letters_total{{reason="rejected"}} {LETTERS:.1f}'
        after = scraped(console, lambda text: letters in text and lag_is_known(text))
        refusing.ends_well()
    fires = {
        "KworkerDeadLetters": {**TICKET, "reason": "rejected"},
        "KworkerDeadLettersFlood": PAGE,
    }
    assert contradiction(tmp_path, [Phase(before, 10), Phase(after, 20)], fires) == ""
    assert contradiction(tmp_path, [Phase(before, 60)], {}) == ""


def lag_is_known(text: str) -> bool:
    return "\nkworker_lag_records " in text


def is_red(text: str) -> bool:
    return 'kworker_state{state="red"} 1.0' in text


def scraped(console: ConsoleClient, shows: Callable[[str], bool]) -> str:
    """Waits until a scrape shows what it should; returns it."""
    last = [""]

    def shown() -> bool:
        last[0] = console.get("/metrics").text
        return shows(last[0])

    eventually(shown, timeout_s=90, every_s=0.2, what="the metrics show it")
    return last[0]
