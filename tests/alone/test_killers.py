"""Records that kill or hang their process among 3,000 others, with `kill -9` beside (5, 7)."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise
from math import inf
from pathlib import Path

import psutil

from bench.confined import Ulimit, limit
from tests.support import kafka
from tests.support.evidence import Evidence, gather
from tests.support.kafka import New, Read, Writer, numbered
from tests.support.ledgers import At, Fault, Invocation, Position, by_position, now_ns
from tests.support.service import Service, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

POISON = """
import ctypes
import os
import re
import time
from tests.support.recorded import recorded

def overflow():
    many = 1_000_000
    ctypes.CDLL(None).regcomp(ctypes.create_string_buffer(256), b"(" * many + b")" * many, 1)

def hoard():
    hoarded = []
    while True:
        hoarded.append(b"x" * (32 << 20))

POISON = {
    "segv": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "stack": overflow,
    "memory": hoard,
    "sleep": lambda: time.sleep(3600),
    "gil": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
}

@recorded
def handle(message):
    POISON.get(message.text(), lambda: time.sleep(0.05))()
    return message.value
"""
WORKERS, THREADS = 3, 4
TIMEOUT_S = 2.0
TIMED_OUT = ("timeout", "over workers.handler_timeout = 2s")
VERDICTS = {
    "segv": ("crashed", "SIGSEGV"),
    "exit": ("crashed", "exit code 3"),
    "stack": ("crashed", "SIGSEGV"),
    "sleep": TIMED_OUT,
    "memory": ("crashed", "SIGKILL"),
    "gil": TIMED_OUT,
}
# The partition of each, two of which a worker has: two that kill are in hand at once.
PLACES = {kind: partition for partition, kind in enumerate(VERDICTS)}
CRASH_LIMIT = 2
KILLS = 3
RECORDS = 3_000
FIRST, RATE = 300, 150  # records before the culprits, and a second beside them: 5/8 of what fits
MEMORY_BYTES = 640 << 20  # for all processes: none comes to `workers.memory`
SETTLED_S = 90.0
# One that hangs is dumped, told to drain, aborted; and the third death of a slot is answered late.
STOOD_S = TIMEOUT_S + 0.5 + 2.0 + 4.0
FDS_MORE = 8  # a cell's pipes


def test_only_poison_records_die_beside_random_kills(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """One bad record cannot stop the service, and nobody is convicted for standing beside it."""
    source = topic("poison", partitions=len(PLACES))
    dead = topic("poison-dead", message_timestamp_type="LogAppendTime")
    settings = {
        "workers": {"processes": WORKERS, "threads": THREADS, "handler_timeout": "2s"},
        "delivery": {"results": results},
        "dead_letter": {"topic": dead, "crash_limit": CRASH_LIMIT, "breaker": ""},
        "retry": {"delays": []},
    }
    held = limit(MEMORY_BYTES)
    kinds = [kind for kind in VERDICTS if kind != "memory" or not isinstance(held, Ulimit)]
    with service(
        tmp_path / "service", bootstrap, [source], handlers=POISON, settings=settings
    ) as struck:
        struck.serve(enter=held.enter)
        before = _descriptors(struck)
        stream = Stream(Writer(bootstrap, tmp_path / "produced"), source)
        culprits = stream.poison(kinds)
        from_ns = now_ns()
        for slot in range(KILLS):
            eventually(lambda slot=slot: stream.flow() and _killed(struck, slot), every_s=0.05)
        eventually(
            lambda: stream.flow() and _over(struck, culprits.values()),
            timeout_s=SETTLED_S,
            every_s=0.1,
        )
        to_ns = now_ns()
        stream.finish()
        struck.caught_up()
        restarts = sum(row["restarts"] for row in struck.workers().values())
        ended = struck.logged("worker_pid") - set(struck.worker_pids().values())
        assert max(_descriptors(struck)) <= max(before) + FDS_MORE
        eventually(lambda: _zombies(struck) == [], what="all that died are reaped")
        suspects = struck.folder / "state" / "suspects"
        eventually(lambda: list(suspects.iterdir()) == [], what="nothing is suspected any more")
        struck.ends_well()
    held.remove()
    found = gather(struck, stream.writer.acked, results)
    letters = kafka.read_all(bootstrap, dead)
    assert _verdicts(letters) == {place: VERDICTS[kind] for kind, place in culprits.items()}
    assert _counted(struck) <= set(culprits.values())
    lives = _lives_ended(found, struck, culprits.values())
    assert all(count <= CRASH_LIMIT + 1 for count in lives.values()), lives
    # Until the hoarder's memory is free the kernel may end one more beside it.
    assert restarts <= sum(lives.values()) + KILLS + CRASH_LIMIT
    ended |= struck.logged("isolated_pid")
    assert _innocent(found, ended, culprits.values()).contradictions() == {}
    assert _overtaken(found, ended, culprits.values()) == []
    gaps = _gaps_s(found, from_ns, to_ns)
    print(f"{restarts} restarts; stood still for {gaps}, of {(to_ns - from_ns) / 1e9:.1f} s")
    assert max(gaps.values()) < STOOD_S


class Stream:
    """What is written: culprits at once, and the others evenly, so that all have work."""

    def __init__(self, writer: Writer, topic: str) -> None:
        self.writer = writer
        self._topic = topic
        self._others = numbered(100 * RECORDS, keys=400)
        self._since = time.monotonic()
        self._written = 0

    def poison(self, kinds: Sequence[str]) -> dict[str, Position]:
        """Some others, then the culprits, each with one of its key behind it; where they are."""
        self._write(FIRST)
        news = [New(kind, kind.encode(), kind.encode(), PLACES[kind]) for kind in kinds]
        behind = [
            replace(other, key=kind.encode(), partition=PLACES[kind])
            for kind, other in zip(kinds, self._others, strict=False)
        ]
        culprits = self.writer.write(self._topic, news)
        self.writer.write(self._topic, behind)
        self._since = time.monotonic()
        return {record.identity: record.position for record in culprits}

    def flow(self) -> bool:
        """Writes what is due by now."""
        self._write(int(FIRST + RATE * (time.monotonic() - self._since)) - self._written)
        return True

    def finish(self) -> None:
        """Writes what is missing."""
        self._write(max(0, RECORDS - self._written))

    def _write(self, count: int) -> None:
        self._written += count
        self.writer.write(self._topic, islice(self._others, count))


# What is done to it and asked of it.


def _killed(struck: Service, slot: int) -> bool:
    """Kills a worker that has its hands full; False if it has not, or died of a record first."""
    row = struck.worker(slot)
    if row["phase"] != "running" or row["in_flight"] < THREADS:
        return False
    with suppress(psutil.NoSuchProcess):
        struck.kill_worker(slot)
        return True
    return False


def _over(struck: Service, culprits: Iterable[Position]) -> bool:
    """Whether all that was to die has died."""
    committed = struck.committed()
    return all(committed.get((topic, p), 0) > offset for topic, p, offset in culprits)


def _descriptors(struck: Service) -> list[int]:
    found = []
    for process in struck.processes():
        with suppress(psutil.NoSuchProcess):  # a cell that had nothing more to do
            found.append(process.num_fds())
    return found


def _zombies(struck: Service) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(struck.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


# What is found afterwards.


def _verdicts(letters: Sequence[Read]) -> dict[Position, tuple[str, str]]:
    """By source: the reason and its words."""
    headers = {read.source: read.headers for read in letters}
    return {
        place: (found["kworker-reason"].decode(), found["kworker-message"].decode())
        for place, found in headers.items()
    }


def _counted(struck: Service) -> set[Position]:
    """Of whom a death was counted, but for kills, which the kernel may deal to those beside."""
    alone = r"record ([^ ]+) ended the isolated process in which it ran alone \((?!SIGKILL)"
    places = [place.rsplit(":", 2) for place in re.findall(alone, struck.said())]
    return {(topic, int(partition), int(offset)) for topic, partition, offset in places}


def _lives_ended(
    found: Evidence, struck: Service, culprits: Iterable[Position]
) -> dict[Position, int]:
    """In how many workers, cells apart, each culprit ran."""
    workers = struck.logged("worker_pid")
    runs = by_position(found.runs)
    return {place: len({run.pid for run in runs[place]} & workers) for place in culprits}


def _overtaken(
    found: Evidence, ended: set[int], culprits: Iterable[Position]
) -> list[tuple[Invocation, Invocation]]:
    """Records that ran while a culprit of their key before them had yet to run, in one life.

    A process that ended leaves what it had not committed: then both run again, in their order.
    """
    runs = by_position(found.runs)
    last = {runs[place][-1].key: runs[place][-1] for place in culprits}
    behind = [
        run for run in found.runs if run.key in last and run.position != last[run.key].position
    ]
    assert {run.key for run in behind} == last.keys()
    over_ns = {pid: _fault(pid, found.runs).to_ns for pid in ended}

    def excused(run: Invocation, culprit: Invocation) -> bool:
        ended_before = over_ns.get(run.pid, inf) <= culprit.start_ns
        return ended_before and runs[run.position][-1].start_ns > culprit.start_ns

    pairs = [(run, last[run.key]) for run in behind if run.start_ns < last[run.key].start_ns]
    return [(run, culprit) for run, culprit in pairs if not excused(run, culprit)]


def _innocent(found: Evidence, ended: set[int], culprits: Iterable[Position]) -> Evidence:
    """The same of all but the culprits; what repeats may do so because a process ended."""
    guilty = set(culprits)
    faults = [_fault(pid, found.runs) for pid in ended - {fault.pid for fault in found.faults}]
    return replace(
        found,
        produced=[record for record in found.produced if record.position not in guilty],
        runs=[run for run in found.runs if run.position not in guilty],
        faults=[*found.faults, *faults],
    )


def _fault(pid: int, runs: Sequence[Invocation]) -> Fault:
    """The end of a process, somewhen after it last did something."""
    times = [at for run in runs if run.pid == pid for at in (run.start_ns, run.end_ns) if at]
    return Fault("ended", pid, -1, (), min(times, default=0), max(times, default=0), 1)


def _gaps_s(found: Evidence, from_ns: int, to_ns: int) -> dict[At, float]:
    """The longest that each partition stood still while the culprits were at large."""
    ends: dict[At, list[int]] = defaultdict(lambda: [from_ns, to_ns])
    for run in found.runs:
        if run.ended and run.end_ns and from_ns < run.end_ns < to_ns:
            ends[run.at].append(run.end_ns)
    return {
        at: max(after - before for before, after in pairwise(sorted(times))) / 1e9
        for at, times in ends.items()
    }
