"""All planned operations under a steady load: nothing is lost, and nothing runs twice."""

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.evidence import gather
from tests.support.kafka import Writer, create_topic, numbered
from tests.support.ledgers import At, Invocation, Produced, now_ns
from tests.support.service import Service, lasting, service
from tests.support.waiting import eventually

# For a proof 2000.
PER_SECOND = int(os.environ.get("PROOF_OPERATIONS", "500"))
PARTITIONS = 8
TICK_S = 0.02
PAUSED_S = 2.0


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_operations_under_load_lose_and_repeat_nothing(
    tmp_path: Path, bootstrap: str, guarantee: str, topic: Callable[..., str]
) -> None:
    source = topic("operations", partitions=PARTITIONS)
    name = f"proof-{source}"
    stamped = {"message_timestamp_type": "LogAppendTime"}
    create_topic(bootstrap, f"{name}.results", PARTITIONS, **stamped)
    settings: dict[str, dict[str, Any]] = {
        "workers": {"processes": 2, "threads": 8},
        "delivery": {"guarantee": guarantee},
        "log": {"format": "json"},
    }
    options: dict[str, Any] = {"settings": settings, "handlers": lasting(0.002), "name": name}
    with service(tmp_path / "service", bootstrap, [source], **options) as here:
        here.serve()
        with load(here, source) as stream:
            pauses = operate(here)
        here.caught_up()
        found = gather(here, stream.acked, here.results, exactly_once=guarantee == "exactly-once")
        here.ends_well()
    for at, gap_s in sorted(longest_gaps(found.runs, pauses).items()):
        print(f"{guarantee}: {at[0]}:{at[1]} stood still for {gap_s:.1f} s at most")
    print(f"{guarantee}: {len(found.produced):,} records at {PER_SECOND:,}/s")
    assert found.contradictions() == {}
    assert found.repeated == []


def operate(here: Service) -> list[tuple[int, int]]:
    """Each operation there is; returns when the service was paused, in ns."""
    types(here, "reload")
    for _ in range(5):
        types(here, "restart")
    for workers in (4, 1, 2):
        types(here, "scale", str(workers))
        here.until(lambda: running(here) == workers, f"{workers} workers run", 60)  # noqa: B023 - called at once
    pauses = [pause(here)]
    replace_for_age(here)
    misconfigure(here)
    return pauses


def types(here: Service, *verb: str) -> None:
    done = here.command(*verb)
    assert done.returncode == 0, f"kworker {' '.join(verb)}: {done.stderr}"


def running(here: Service) -> int:
    return sum(row["phase"] == "running" for row in here.workers().values())


def in_hand(here: Service) -> int:
    return sum(row["in_hand"] for row in here.workers().values())


def pause(here: Service) -> tuple[int, int]:
    """Pauses until nothing is in hand, and for a while, in which no record is taken."""
    types(here, "pause")
    here.until(lambda: here.state() == "paused", "it is paused", 30)
    looks = [-1]

    def stands_still() -> bool:
        looks.append(here.counter("consumed"))
        return looks[-1] == looks[-2] and not in_hand(here)

    eventually(stands_still, timeout_s=30, every_s=0.5, what="nothing is taken or in hand")
    since, taken = now_ns(), here.counter("consumed")
    eventually(lambda: now_ns() - since > PAUSED_S * 1e9, timeout_s=2 * PAUSED_S, what="a while")
    assert here.state() == "paused"
    assert here.counter("consumed") == taken
    types(here, "resume")
    here.until(lambda: here.counter("consumed") > taken, "it goes on", 30)
    return since, now_ns()


def replace_for_age(here: Service) -> None:
    """By `max_records`: each worker is replaced after so many, with a drain."""
    rewrite(here, r"(\[workers\])", rf'\1\n"max_records" = {PER_SECOND}')
    types(here, "reload")
    here.until(
        lambda: sum(row["replacements"] for row in here.workers().values()) >= 4,
        "workers are replaced for their age",
        90,
    )


def misconfigure(here: Service) -> None:
    """A wrong file changes nothing."""
    before = here.config.read_text()
    pids = here.worker_pids()
    rewrite(here, r'"threads" = 8', '"threads" = "many"')
    refused = here.command("reload")
    assert (refused.returncode, "workers.threads" in refused.stderr) == (78, True), refused.stderr
    here.config.write_text(before)
    assert here.state() == "running"
    assert set(here.worker_pids()) == set(pids)


def rewrite(here: Service, pattern: str, by: str) -> None:
    text, count = re.subn(pattern, by, here.config.read_text(), count=1)
    assert count == 1
    here.config.write_text(text)


class Stream:
    """Records at a steady pace, written by a thread of its own."""

    def __init__(self, here: Service, source: str) -> None:
        self._writer = Writer(here.bootstrap, here.folder / "produced")
        self._source = source
        self._records = numbered(1_000_000, keys=400)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def acked(self) -> list[Produced]:
        return self._writer.acked

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began, written = time.monotonic(), 0
        while not self._ended.wait(TICK_S):
            due = int((time.monotonic() - began) * PER_SECOND)
            self._writer.begin(self._source, [next(self._records) for _ in range(due - written)])
            written = due
        self._writer.finish()


@contextmanager
def load(here: Service, source: str) -> Iterator[Stream]:
    stream = Stream(here, source)
    try:
        yield stream
    finally:
        stream.end()


def longest_gaps(runs: list[Invocation], pauses: list[tuple[int, int]]) -> dict[At, float]:
    """The longest time between two runs of each partition, without those of a pause."""
    starts: dict[At, list[int]] = defaultdict(list)
    for run in runs:
        starts[run.at].append(run.start_ns)

    def paused(begin: int, end: int) -> bool:
        return any(begin < last and first < end for first, last in pauses)

    return {
        at: max(
            ((b - a) / 1e9 for a, b in pairwise(sorted(times)) if not paused(a, b)), default=0.0
        )
        for at, times in starts.items()
    }
