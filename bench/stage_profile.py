"""`make profile`: microseconds a record in a worker, by stage, and how much of them is waiting.

It starts a Kafka, writes 2,000,000 records of 200 bytes, and lets one worker run over them with
handlers that do nothing, that return a result, the same exactly once, and that decode JSON. A tenth
of the records goes to handlers that take 10 ms, in 256 threads and in 1,000 tasks. The figures are
of the time between the first and the last half second of each run. It takes about two minutes.

CPU time is that of the stage's thread; the rest of its wall time is waiting. The poll thread has
all stages but `handlers`. What async handlers use is the CPU time of the event loop's thread, with
the pool's own part. `librdkafka` is the rest of the process: the threads of that library, and those
of kworker that have little to do.

Then follow the stages that never block by themselves: intake, lanes, hand over, judge, results,
produce and settle of the poll thread, and handlers, unless they sleep. A thread that is in such a
stage and on no CPU waits for a CPU, or for the interpreter's lock (the GIL). The kernel counts how
long threads wait for a CPU, and this is subtracted. But it counts by thread and not by stage. So
what a thread waited for a CPU in its other stages is subtracted, too, and the share of waiting for
the lock is the least that it can be. Without the subtraction it is the most that it can be. Both
are shares of the wall time of these stages. Other stops count as waiting for the lock: for a lock
of librdkafka, for a page of memory, or for a CPU that another virtual machine has. So a run is
measured again while such machines take more than 2 % of the CPU.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

from bench import ours
from bench.contenders import MANY_THREADS, TASKS
from bench.disturbance import least_disturbed
from bench.handwritten import NO_OP_THREADS
from bench.place import ROOT, Place, servers
from bench.stages import HANDLERS, LOOP, NEVER_BLOCK, POLL, STAGES
from bench.topic import TOPIC, Group, fill
from bench.watched import SLOWEST, START_S, Broken

RECORDS = 2_000_000
LOOK_S = 0.05
SLOW_PART = 0.1


class Row(NamedTuple):
    """A service, its part of the records, and whether its handlers sleep."""

    service: ours.Service
    part: float = 1.0
    sleeps: bool = False


ROWS = {
    "no-op": Row(ours.Service("no_op", NO_OP_THREADS)),
    "a result each": Row(ours.Service("result", NO_OP_THREADS)),
    "exactly once": Row(ours.Service("result", NO_OP_THREADS, exactly_once=True)),
    "decoded": Row(ours.Service("decoded", NO_OP_THREADS)),
    "256 threads": Row(ours.Service("wait", MANY_THREADS), SLOW_PART, sleeps=True),
    "1,000 tasks": Row(ours.Service("wait_async", TASKS), SLOW_PART, sleeps=True),
}

Times = tuple[float, float]
"""Of a stage: wall and CPU time. Of threads: time on a CPU, and of waiting for one."""


class Waits(NamedTuple):
    """Microseconds a record of threads in stages that never block: on a CPU, or waiting."""

    wall: float
    cpu: float
    for_cpu: float
    for_lock: float  # at least


class Profile(NamedTuple):
    """Microseconds a record: by stage, by role of threads, and the CPU time of the whole process.

    `stolen` is the share of the CPU that other virtual machines took.
    """

    rate: float
    stages: dict[str, Times]
    threads: dict[str, Times]
    waits: dict[str, Waits]
    process_us: float
    stolen: float = 0.0


def measure(place: Place, run: str, row: Row, records: int) -> Profile:
    """Runs the service over its records, and compares its first report with its last."""
    report = place.folder / f"{run}.stages"
    group = Group(place.kafka, run)
    records = group.begin(round(records * row.part))
    environment = {
        **row.service.environment(place, run),
        "KWORKER_HANDLER": f"profiled:{row.service.handler}",
        "PYTHONPATH": str(ROOT),
        "BENCH_STAGES": str(report),
    }
    try:
        ours.command(environment, "topics", "create")
        with ours.started(environment, place.folder / f"{run}.log") as process:
            reports = list(_reports(report, records, process))
    finally:
        group.close()
    if len(reports) < 2:
        raise Broken("all records were done within half a second: there is nothing to compare")
    return between(reports[0], reports[-1], sleeps=row.sleeps)


def _reports(report: Path, records: int, process: Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Each report that was written while records were done. Raises Broken if the service ends."""
    last, deadline = -1, time.monotonic() + START_S + records / SLOWEST
    while last < records:
        if process.poll() is not None:
            raise Broken(f"it ended with exit code {process.returncode}; see its log")
        if time.monotonic() > deadline:
            raise Broken(f"{max(last, 0):,} of {records:,} records are done at the deadline")
        time.sleep(LOOK_S)
        found = json.loads(report.read_text()) if report.exists() else {"done": 0}
        if found["done"] > max(last, 0):
            last = found["done"]
            if last < records:
                yield found


def between(first: Mapping[str, Any], last: Mapping[str, Any], *, sleeps: bool) -> Profile:
    """Returns what a worker did between two of its reports; `sleeps` tells if its handlers do."""
    records = last["done"] - first["done"]

    def each(what: str) -> dict[str, Times]:
        return {
            name: ((ns[0] - before[0]) / 1e3 / records, (ns[1] - before[1]) / 1e3 / records)
            for name, ns in last[what].items()
            for before in [first[what][name]]
        }

    stages, threads = each("stages"), each("threads")
    waiting = {POLL: waits([stages[name] for name in NEVER_BLOCK], threads[POLL])}
    if not sleeps:
        waiting[HANDLERS] = waits([stages["handlers"]], threads[HANDLERS])
    process_us = (last["process_s"] - first["process_s"]) * 1e6 / records
    rate = records / (last["at_s"] - first["at_s"])
    return Profile(rate, stages, threads, waiting, process_us)


def waits(stages: Sequence[Times], threads: Times) -> Waits:
    """Returns how threads waited in these stages, given their times in all stages.

    Counts all their waits for a CPU as if they were in these stages, but for what does not fit.
    """
    wall, cpu = (sum(times) for times in zip(*stages, strict=True))
    waiting = max(0.0, wall - cpu)
    for_cpu = min(threads[1], waiting)
    return Waits(wall, cpu, for_cpu, waiting - for_cpu)


def lock_shares(waiting: Sequence[Waits]) -> tuple[float, float]:
    """The share of waiting for the interpreter's lock in the wall time: at least, and at most."""
    wall = sum(each.wall for each in waiting)
    least = sum(each.for_lock for each in waiting)
    most = least + sum(each.for_cpu for each in waiting)
    return (least / wall, most / wall) if wall else (0.0, 0.0)


def show(name: str, found: Profile) -> None:
    print(f"\n{_line(name, found)}")
    print(f"  {'':<16}{'wall':>8}{'CPU':>8}{'waiting':>9}   µs a record")
    names = list(dict.fromkeys(stage.name for stage in STAGES))
    for stage in (stage for stage in names if found.stages[stage][0]):
        _show_stage(stage, *found.stages[stage])
    polling = [found.stages[stage] for stage in names if stage != "handlers"]
    _show_stage(POLL, *map(sum, zip(*polling, strict=True)))
    known_us = sum(cpu for cpu, _ in found.threads.values())
    if loop_us := found.threads[LOOP][0]:
        print(f"  {f'{LOOP} (CPU)':<16}{'':>8}{loop_us:>8.2f}")
    print(f"  {'librdkafka':<16}{'':>8}{found.process_us - known_us:>8.2f}")
    print(f"  {'process':<16}{'':>8}{found.process_us:>8.2f}")
    print("  where nothing blocks, of that")
    print(f"  {'':<16}{'wall':>8}{'CPU':>8}{'for a CPU':>11}{'for the lock':>14}   µs a record")
    for role, (wall, cpu, for_cpu, for_lock) in found.waits.items():
        print(f"  {role:<16}{wall:>8.2f}{cpu:>8.2f}{for_cpu:>11.2f}{for_lock:>14.2f}")
    least, most = lock_shares(list(found.waits.values()))
    print(
        f"  waiting for the interpreter's lock: {least:.0%} of this wall time, or up to {most:.0%}"
    )
    print(f"  {found.stolen:.0%} of the CPU went to other machines", flush=True)


def _show_stage(name: str, wall: float, cpu: float) -> None:
    print(f"  {name:<16}{wall:>8.2f}{cpu:>8.2f}{wall - cpu:>9.2f}")


def _line(name: str, found: Profile) -> str:
    return f"{name}: {found.rate:,.0f} records/s"


def _least_disturbed(place: Place, number: int, name: str, records: int) -> Profile:
    found, stolen = least_disturbed(
        lambda again: measure(place, f"profile-{number}-{again}", ROWS[name], records),
        lambda found: _line(name, found),
    )
    return found._replace(stolen=round(stolen, 4))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=RECORDS, help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=ROWS, help="only these rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args(argv)
    found: dict[str, Profile] = {}
    with servers(".bench") as place:
        print(f"filling the topic with {arguments.records:,} records", flush=True)
        fill(place.kafka, TOPIC, arguments.records)
        for number, name in enumerate(arguments.only or ROWS):
            found[name] = _least_disturbed(place, number, name, arguments.records)
            show(name, found[name])
    if arguments.json:
        arguments.json.write_text(json.dumps(told(found), indent=1))
    return 0


def told(found: Mapping[str, Profile]) -> dict[str, Any]:
    """The figures by row, for JSON."""
    return {
        name: profile._asdict()
        | {"waits": {role: each._asdict() for role, each in profile.waits.items()}}
        for name, profile in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
