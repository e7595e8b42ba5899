"""Alerts fire for what a supervisor shows while a part of its service fails.

No broker is there, so its lag is never known, and the alert on that fires each time.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.alerts import Phase, contradiction
from tests.support.bare_service import Service
from tests.support.console import ConsoleClient
from tests.support.waiting import eventually

PAGE, TICKET = {"severity": "page"}, {"severity": "ticket"}
BLIND = {"KworkerLagUnknown": TICKET}


@pytest.fixture
def console(service: Service, free_port: Callable[[], int]) -> ConsoleClient:
    port = free_port()
    service.write(settings={"console": {"listen": f"127.0.0.1:{port}"}, "spark": True})
    (service.folder / "spark.json").write_text("{}")
    return ConsoleClient(port)


def shows(console: ConsoleClient, sample: str) -> str:
    """Waits until a scrape has this line; returns the scrape."""
    last = [""]

    def shown() -> bool:
        last[0] = console.get("/metrics").text
        return sample in last[0].splitlines()

    eventually(shown, what=f"it shows {sample}", every_s=0.1)
    return last[0]


def test_a_delay_process_that_does_not_come_back_pages(
    service: Service, console: ConsoleClient, tmp_path: Path
) -> None:
    service.write(limits={"restart": {"first_delay_s": 300.0, "deaths_at_once": 0}})
    service.serve()
    pid = service.delay_runs()
    shows(console, "kworker_spark_running 1.0")
    well = shows(console, "kworker_delay_running 1.0")
    os.kill(pid, signal.SIGKILL)
    gone = shows(console, "kworker_delay_running 0.0")
    fires = {**BLIND, "KworkerDelayProcessSilent": PAGE, "KworkerRed": PAGE}
    assert contradiction(tmp_path, [Phase(well, 20), Phase(gone, 20)], fires) == ""
    assert contradiction(tmp_path, [Phase(well, 60)], BLIND) == ""


def test_a_table_that_falls_behind_is_a_ticket(
    service: Service, console: ConsoleClient, tmp_path: Path
) -> None:
    """From ten minutes to ten minutes it is further behind."""
    service.serve()
    shows(console, "kworker_spark_running 1.0")
    scraped = [behind(service, console, number) for number in range(0, 1200, 100)]
    fires = {**BLIND, "KworkerTableFallsBehind": {**TICKET, "table": "t"}}
    assert contradiction(tmp_path, [Phase(text, 10) for text in scraped], fires) == ""
    assert contradiction(tmp_path, [Phase(text, 10) for text in reversed(scraped)], BLIND) == ""


def behind(service: Service, console: ConsoleClient, number: int) -> str:
    """The job tells of so many results that its table lacks; what a scrape says then."""
    file = service.folder / "spark" / "progress.json"
    told = json.loads(file.read_text())
    told["tables"][0]["behind"] = number
    draft = file.with_name("draft")
    draft.write_text(json.dumps(told))
    draft.rename(file)
    return shows(console, f'kworker_table_behind_records{{table="t"}} {number:.1f}')
