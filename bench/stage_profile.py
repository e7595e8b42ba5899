"""`make profile`: microseconds a record in a worker, by stage, and how much of them is waiting.

It starts a Kafka, writes 2,000,000 records of 200 bytes, and lets one worker run over them with
handlers that do nothing, that return a result, the same exactly once, and that decode JSON. The
figures are of the time between the first and the last half second of each run. It takes a minute.

CPU time is that of the stage's thread; the rest of its wall time is waiting: for the interpreter's
lock or for a CPU, and in `take`, `collect` and `slack` for something to do. The poll thread has all
stages but `handlers`. What the threads of librdkafka use is the difference to the process.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import ours
from bench.handwritten import NO_OP_THREADS
from bench.place import ROOT, Place, Stolen, servers
from bench.stages import STAGES
from bench.topic import TOPIC, Group, fill
from bench.watched import SLOWEST, START_S, Broken

RECORDS = 2_000_000
LOOK_S = 0.05
ROWS = {
    "no-op": ours.Service("no_op", NO_OP_THREADS),
    "a result each": ours.Service("result", NO_OP_THREADS),
    "exactly once": ours.Service("result", NO_OP_THREADS, exactly_once=True),
    "decoded": ours.Service("decoded", NO_OP_THREADS),
}


class Profile(NamedTuple):
    """Microseconds a record: by stage wall and CPU time, and the CPU time of the whole process."""

    rate: float
    stages: dict[str, tuple[float, float]]
    process_us: float


def measure(place: Place, run: str, service: ours.Service, records: int) -> Profile:
    """Runs the service over the records, and compares its first report with its last."""
    report = place.folder / f"{run}.stages"
    group = Group(place.kafka, run)
    records = group.begin(records)
    environment = {
        **service.environment(place, run),
        "KWORKER_HANDLER": f"profiled:{service.handler}",
        "PYTHONPATH": str(ROOT),
        "BENCH_STAGES": str(report),
    }
    try:
        ours.command(environment, "topics", "create")
        with ours.started(environment, place.folder / f"{run}.log"):
            reports = list(_reports(report, records))
    finally:
        group.close()
    if len(reports) < 2:
        raise Broken("all records were done within half a second: there is nothing to compare")
    return _between(reports[0], reports[-1])


def _reports(report: Path, records: int) -> Iterator[dict[str, Any]]:
    """Each report that was written while records were done."""
    last, deadline = -1, time.monotonic() + START_S + records / SLOWEST
    while last < records:
        if time.monotonic() > deadline:
            raise Broken(f"{max(last, 0):,} of {records:,} records are done at the deadline")
        time.sleep(LOOK_S)
        found = json.loads(report.read_text()) if report.exists() else {"done": 0}
        if found["done"] > max(last, 0):
            last = found["done"]
            if last < records:
                yield found


def _between(first: dict[str, Any], last: dict[str, Any]) -> Profile:
    records = last["done"] - first["done"]
    stages = {
        name: tuple((b - a) / 1e3 / records for a, b in zip(first["stages"][name], ns, strict=True))
        for name, ns in last["stages"].items()
    }
    process_us = (last["process_s"] - first["process_s"]) * 1e6 / records
    return Profile(records / (last["at_s"] - first["at_s"]), stages, process_us)


def show(name: str, found: Profile) -> None:
    print(f"\n{name}: {found.rate:,.0f} records/s")
    print(f"  {'':<16}{'wall':>8}{'CPU':>8}{'waiting':>9}   µs a record")
    names = list(dict.fromkeys(stage.name for stage in STAGES))
    for stage in names:
        _line(stage, *found.stages[stage])
    polling = [found.stages[stage] for stage in names if stage != "handlers"]
    _line("poll thread", *map(sum, zip(*polling, strict=True)))
    threads_us = sum(cpu for _, cpu in found.stages.values())
    print(f"  {'librdkafka':<16}{'':>8}{found.process_us - threads_us:>8.2f}")
    print(f"  {'process':<16}{'':>8}{found.process_us:>8.2f}")


def _line(name: str, wall: float, cpu: float) -> None:
    print(f"  {name:<16}{wall:>8.2f}{cpu:>8.2f}{wall - cpu:>9.2f}")


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
            stolen = Stolen()
            found[name] = measure(place, f"profile-{number}", ROWS[name], arguments.records)
            show(name, found[name])
            print(f"  {stolen.share():.0%} of the CPU went to other machines", flush=True)
    if arguments.json:
        told = {name: profile._asdict() for name, profile in found.items()}
        arguments.json.write_text(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
