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


def test_topics_and_the_last_dead_letters_are_shown() -> None:
    text = shown()
    assert "topic orders: 8 behind in 4 partitions\n" in text
    letter = {"record": "orders:3:17", "reason": "rejected", "at_ms": 0}
    error = "bad \x1b[2J order\nand more"
    text = shown(last_dead_letters=[{**letter, "error": error}] * 5)
    assert text.count("dead letter orders:3:17, rejected, ") == 3
    assert "ago: bad \\x1b[2J order\n" in text


def test_a_pause_is_shown_with_its_author_and_its_end() -> None:
    rows = [
        {"topic": "*", "since_ms": 1_790_000_000_000, "until_ms": None, "by": "me@here"},
        {
            "topic": "orders",
            "since_ms": 1_790_000_000_000,
            "until_ms": 1_790_000_060_000,
            "by": "x",
        },
    ]
    text = shown(paused=rows)
    since = "since 2026-09-21 14:13:20Z by"
    assert f"  paused: all topics, {since} me@here, until `kworker resume`\n" in text
    assert f"  paused: orders, {since} x, until 2026-09-21 14:14:20Z\n" in text
    assert "paused" not in shown()
