"""Records that end well, and whose process dies a moment later of what they left behind."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import New, Writer, read_all
from tests.support.service import service

Topic = Callable[..., str]

HANDLERS = """
import asyncio
import os
import threading
import time

def left_behind(message):
    if message.text() == "bomb":
        threading.Timer(0.05, os._exit, (3,)).start()
    return message.value

def in_threads(message):
    time.sleep(0.02)
    return left_behind(message)

async def in_tasks(message):
    await asyncio.sleep(0.02)
    return left_behind(message)
"""
RECORDS, BOMBS = 60, (10, 30)
# A commit between the end and the crash would end the loop by chance: 1 in 40 times.
COMMIT_INTERVAL = "2s"
RESTARTS_MOST = 3


@pytest.mark.parametrize(
    ("handler", "workers", "guarantee"),
    [
        ("in_threads", {"threads": 1}, "at-least-once"),
        ("in_threads", {"threads": 4}, "exactly-once"),
        ("in_tasks", {"concurrency": 4}, "at-least-once"),
    ],
)
def test_processes_that_die_after_a_records_end_are_no_crash_loop(
    tmp_path: Path,
    bootstrap: str,
    topic: Topic,
    results: str,
    handler: str,
    workers: dict[str, Any],
    guarantee: str,
) -> None:
    """No record is to blame, others of its thread have begun: all are isolated for a while."""
    source = topic("late", partitions=2)
    values = [b"bomb" if n in BOMBS else b"%d" % n for n in range(RECORDS)]
    Writer(bootstrap, tmp_path / "produced").write(
        source, [New(str(n), value, b"%d" % n) for n, value in enumerate(values)]
    )
    handlers = f"{HANDLERS}\nhandle = {handler}\n"
    settings = {
        "workers": {"processes": 1, **workers},
        "delivery": {
            "results": results,
            "commit_interval": COMMIT_INTERVAL,
            "guarantee": guarantee,
        },
    }
    with service(
        tmp_path / "service", bootstrap, [source], handlers=handlers, settings=settings
    ) as struck:
        struck.serve()
        struck.caught_up()
        restarts = struck.worker(0)["restarts"]
        dead = struck.status()["counters"]["dead"]
        struck.ends_well()
    assert 1 <= restarts <= RESTARTS_MOST
    assert dead == 0
    found = Counter(read.value for read in read_all(bootstrap, results))
    assert found.keys() == set(values)
    if guarantee == "exactly-once":
        assert found == Counter(values)
