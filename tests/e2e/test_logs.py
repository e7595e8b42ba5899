"""The log of a daemon: what handlers write in it, and where it goes when its file is moved."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.service import Service, service

Topic = Callable[..., str]

HANDLERS = """
import logging

def handle(message):
    print("printed", message.text())
    logging.getLogger("handlers").warning("logged %s", message.text())
"""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def events(log: Path) -> list[dict[str, Any]]:
    """The events of a log; every line of it must be JSON."""
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def found(log: Path, event: str) -> list[dict[str, Any]]:
    return [each for each in events(log) if each["event"] == event]


def typed(of: Service, *words: str) -> None:
    done = of.command(*words)
    assert done.returncode == 0, done.stderr


def pids(of: Service) -> list[int]:
    status = of.status()
    return [status["pid"], status["delay"]["pid"], *(row["pid"] for row in status["workers"])]


def test_handlers_lines_name_their_record_and_follow_the_file(
    tmp_path: Path, bootstrap: str, topic: Topic
) -> None:
    """Forked processes keep a moved file, if they do not look where its name has gone."""
    source = topic("logged", partitions=1)
    with service(tmp_path / "service", bootstrap, [source], handlers=HANDLERS) as live:
        typed(live, "start", "--daemon")
        log, moved = live.folder / "state" / "kworker.log", live.folder / "state" / "moved"
        typed(live, "send", "one", "--header", f"traceparent=00-{TRACE}-00f067aa0ba902b7-01")
        live.until(lambda: bool(found(log, "logged one")), "the handler's line")
        [logged], [printed] = found(log, "logged one"), found(log, "printed one")
        assert (logged["logger"], printed["logger"]) == ("handlers", "print")
        for line in (logged, printed):
            assert (line["record"], line["attempt"]) == (f"{source}:0:0", 1)
            assert line["trace_id"] == TRACE
            assert "worker" in line
        log.rename(moved)
        live.until(
            lambda: {os.readlink(f"/proc/{pid}/fd/2") for pid in pids(live)} == {str(log)},
            "all processes write to the new file",
        )
        typed(live, "send", "two")
        live.until(lambda: bool(found(log, "logged two")), "a line in the new file")
        typed(live, "stop")
        live.is_gone()
        assert not found(moved, "logged two")
        assert found(log, "supervisor ends")
