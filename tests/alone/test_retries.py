"""Thousands of records that fail again and again: each comes back when due, and not before."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from tests.support import kafka
from tests.support.kafka import Writer, numbered
from tests.support.ledgers import At, Fault, Invocation, Progress, invocations
from tests.support.lines import whole_lines
from tests.support.service import Service, service
from tests.support.waiting import eventually, repeated

Topic = Callable[..., str]

RECORDS, FIRST, PARTITIONS = 5_000, 500, 4
PORTION, PACE_S = 500, 0.5  # 1,000 records a second, of which 3,000 runs in the busiest follow
DELAYS_S = (1, 2, 4)
LATE_S, PUNCTUAL = 0.5, 0.99
TRIES = 3  # the machine may be busy in one of them; who is late by himself is late in each
KILLED_AFTER, JOINED_AFTER = (11_000, 13_000), 14_000  # retries, of 15,000: a second apart
FAILING = """
from tests.support.recorded import recorded

@recorded
def handle(message):
    if message.attempt < 4:
        raise ConnectionError("the billing service does not answer")
    return message.value
"""


@pytest.mark.timeout(600)
def test_5_000_failing_records_are_retried_on_time_through_kills(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """Each is done with its four attempts, and others only where a kill cut one off."""

    def punctual(number: int) -> float:
        return _share_of_the_punctual(tmp_path / f"{number}", bootstrap, topic, results)

    repeated(punctual, lambda share: share >= PUNCTUAL, tries=TRIES, what="in time")


def _share_of_the_punctual(folder: Path, bootstrap: str, topic: Topic, results: str) -> float:
    """Of the retries of one run, in which all else must hold."""
    source = topic("proof", partitions=PARTITIONS)
    settings = {
        "workers": {"processes": 2},
        "retry": {"delays": [f"{delay}s" for delay in DELAYS_S]},
        "delivery": {"results": results},
        "kafka.consumer": {"heartbeat.interval.ms": 500},
        # Everything fails at first, and none of it dies.
        "log": {"format": "json"},
    }
    folder.mkdir()
    writer = Writer(bootstrap, folder / "produced")
    with service(
        folder / "service", bootstrap, [source], handlers=FAILING, settings=settings
    ) as failing:
        failing.serve()
        # A broker that has just begun is slow at its first transactions: that is no part of this.
        first = {record.position for record in writer.write(source, numbered(FIRST, keys=FIRST))}
        progress = Progress(failing.ledger)
        eventually(lambda: progress.done() == FIRST, what="the first are done")
        # At a pace: how late they are is asked, not how many a machine can take in a moment.
        for begin in range(FIRST, FIRST + RECORDS, PORTION):
            written_s = time.monotonic()
            writer.write(source, numbered(PORTION, keys=500, first=begin))
            eventually(partial(_next_is_due, progress, begin + PORTION, written_s + PACE_S))
        for slot, more in enumerate(KILLED_AFTER):
            _eventually_retried(failing, 3 * FIRST + more)
            failing.kill_worker(slot)
            failing.is_running()
        _eventually_retried(failing, 3 * FIRST + JOINED_AFTER)
        assert failing.command("scale", "+1").returncode == 0
        eventually(lambda: progress.done() == FIRST + RECORDS, what="all are done")
        owned = ownership(failing, f"{failing.name}.requeue")
        failing.ends_well()
        dead = kafka.read_all(bootstrap, f"{failing.name}.dead")
    runs = invocations(failing.ledger)
    attempts = by_attempt(runs)
    assert dead == []
    assert attempts.keys() == {
        (record.position, attempt) for record in writer.acked for attempt in (1, 2, 3, 4)
    }
    assert not_by_a_kill(attempts, failing.faults.faults) == []
    late_s = list(lateness({of: at for of, at in attempts.items() if of[0] not in first}, owned))
    print(f"{len(late_s)} runs, {sum(late > LATE_S for late in late_s)} of them late")
    assert min(late_s) >= 0
    assert len(late_s) > RECORDS
    return sum(late <= LATE_S for late in late_s) / len(late_s)


Attempts = dict[tuple[tuple[str, int, int], int], list[Invocation]]


def _next_is_due(progress: Progress, count: int, at_s: float) -> bool:
    """Whether it is time for the next portion, and all before it were run."""
    return time.monotonic() >= at_s and progress.begun() >= count


def _eventually_retried(running: Service, count: int) -> None:
    eventually(lambda: running.counter("retried") > count, what=f"{count} retries")


def by_attempt(runs: Sequence[Invocation]) -> Attempts:
    found: Attempts = defaultdict(list)
    for run in runs:
        found[run.position, run.attempt].append(run)
    return dict(found)


def not_by_a_kill(attempts: Attempts, faults: Sequence[Fault]) -> list[Invocation]:
    """Runs of an attempt that had been made before, and that no kill explains.

    It is at least once: a worker that is killed between its letter and its commit has the
    record run again, and from there on it comes back twice.
    """
    killed = {fault.pid for fault in faults}
    unexplained = []
    for (position, attempt), made in attempts.items():
        cut = sum(run.pid in killed for run in made[:-1])
        doubled = len(attempts.get((position, attempt - 1), made[:1])) - 1
        unexplained += made[1 + cut + doubled :]
    return unexplained


def lateness(attempts: Attempts, owned: dict[int, list[tuple[float, float]]]) -> Iterator[float]:
    """Seconds after the due time at which each retry began, where its partition had an owner."""
    for (position, attempt), made in attempts.items():
        before = attempts.get((position, attempt - 1), [])
        if len(made) != 1 or len(before) != 1 or before[0].end_ns is None:
            continue  # the first attempt, or which came of which cannot be told
        due_s = before[0].end_ns / 1e9 + DELAYS_S[attempt - 2]
        if any(begin <= due_s and end >= due_s + LATE_S for begin, end in owned[position[1]]):
            yield made[0].start_ns / 1e9 - due_s


def ownership(running: Service, topic: str) -> dict[int, list[tuple[float, float]]]:
    """When each partition had an owner, as the workers' log and the kills tell."""
    ends = {fault.pid: fault.from_ns / 1e9 for fault in running.faults.faults}
    begun: dict[tuple[int, At], float] = {}
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for line in whole_lines(running.output):
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") not in ("partitions assigned", "partitions revoked"):
            continue
        at_s = datetime.fromisoformat(event["timestamp"]).timestamp()
        for name in event["partitions"]:
            at = (name.rpartition("/")[0], int(name.rpartition("/")[2]))
            if at[0] != topic:
                continue
            if event["event"] == "partitions assigned":
                begun[event["pid"], at] = at_s
            elif (event["pid"], at) in begun:
                found[at[1]].append((begun.pop((event["pid"], at)), at_s))
    for (pid, at), since_s in begun.items():
        found[at[1]].append((since_s, ends.get(pid, time.time())))
    return found
