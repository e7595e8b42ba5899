"""What `kworker status` shows of a status document."""

from typing import Any

from rich.console import Console

from kworker.cli.status_view import render
from tests.unit.console.documents import document


def shown(**changed: Any) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render(document(**changed)))
    return captured.get()


def test_the_console_is_shown_with_its_address() -> None:
    assert "console running http://127.0.0.1:8321/\n" in shown()


def test_a_console_that_waits_says_why() -> None:
    reason = "the console cannot listen on 127.0.0.1:8321 (Address already in use)"
    waiting = {"state": "waiting", "listen": "127.0.0.1:8321", "pid": None, "reason": reason}
    assert reason in shown(console=waiting)
    off = {"state": "off", "listen": "", "pid": None, "reason": ""}
    assert "console" not in shown(console=off)
