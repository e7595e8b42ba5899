"""`make bench`: compares kworker with what people use instead, on one topic, in one run.

Each contender is a process with a fresh group: kworker, hand-written consumers, and frameworks,
each with packages of its own. They run one after the other, in rounds, so that a drift of the
machine affects all. The time is from the first record read to the last one done, or committed, if
the contender commits. A ratio is the median of the ratios of the rounds.

Other virtual machines may take the CPU, or slow it. A measurement during which they took more than
2 % of it is repeated, up to twice. One during which a loop that never changes was a quarter slower
than usual is repeated once. The least disturbed one counts. All repeats together may take a minute
and 5 % of the time of the rest, so that the whole ends within an hour.

Over 300 lines: the sizes, the rounds and the report are one program.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bench import (
    environments,
    frameworks,
    handwritten,
    intervals,
    landing,
    latency,
    lifecycle,
    ours,
    published,
    tables,
)
from bench.contenders import (
    COMPUTE,
    CONTENDERS,
    DISTINCT_PART,
    HOT_PART,
    REFERENCES,
    TARGETS,
    Contender,
)
from bench.disturbance import least_disturbed
from bench.environments import Unavailable
from bench.paced import PACED
from bench.place import ROOT, Place, servers
from bench.progress import Progress
from bench.table import minutes, show, spent
from bench.topic import DISTINCT, HOT, TOPIC, Group, distinct_key, fill, hot_key
from bench.watched import Broken, Measured


@dataclass(frozen=True)
class Size:
    """The amount of work in a run."""

    rounds: int
    untargeted_rounds: int  # of contenders in no ratio that is wanted
    records: int
    waiting: int  # records, for handlers that take 10 ms
    computed: int  # records at least, for handlers that compute, lest a start be measured
    paced_s: float  # duration of a fixed pace of records, to measure delays
    rivals_paced: bool  # with those that are asked only if they let others wait
    landed: int  # results for `--once`; three times as many for batches
    into_tables: float  # share of the records from topics into tables
    part_rounds: int  # of the parts that are not contenders
    spark_rounds: int  # but of those that start Spark jobs, which takes most of their time
    kills: int  # of a worker, for each commit interval
    intervals: tuple[str, ...]


FULL = Size(
    rounds=5,
    untargeted_rounds=1,
    records=2_000_000,
    waiting=51_200,
    computed=30_000,
    paced_s=5.0,
    rivals_paced=True,
    landed=300_000,
    into_tables=0.3,
    part_rounds=3,
    spark_rounds=2,
    kills=2,
    intervals=intervals.CHOICES,
)
QUICK = Size(
    rounds=1,
    untargeted_rounds=1,
    records=400_000,
    waiting=12_800,
    computed=30_000,
    paced_s=2.0,
    rivals_paced=False,
    landed=300_000,
    into_tables=0.2,
    part_rounds=1,
    spark_rounds=1,
    kills=1,
    intervals=intervals.QUICK_CHOICES,
)


class Part(NamedTuple):
    """A part of the benchmark with rows of its own."""

    measure: Callable[[Place, Size, dict[str, str]], Any]  # notes there which rows it left out
    show: Callable[[Any], bool]


PARTS = {
    "tables": Part(
        lambda place, size, _: tables.measure(
            place, size.spark_rounds, size.landed, 3 * size.landed
        ),
        tables.show,
    ),
    "landing": Part(
        lambda place, size, _: landing.measure(place, size.spark_rounds, size.into_tables),
        landing.show,
    ),
    "published": Part(
        lambda place, size, _: published.measure(place, size.part_rounds), published.show
    ),
    "latency": Part(
        lambda place, size, absent: latency.measure(
            place, size.paced_s, absent, rivals=size.rivals_paced
        ),
        latency.show,
    ),
    "lifecycle": Part(
        lambda place, size, _: lifecycle.measure(place, size.part_rounds), lifecycle.show
    ),
    "intervals": Part(
        lambda place, size, _: intervals.measure(
            place, size.records // 6, size.paced_s, size.kills, size.intervals
        ),
        intervals.show,
    ),
}


WITH_TARGET = {name for target in TARGETS for name in target[:2]}
ALL_CONTENDERS = [contender.name for contender in CONTENDERS]
ALL_NAMES = [*ALL_CONTENDERS, *PARTS]
QUICK_NAMES = [*WITH_TARGET, "latency", "lifecycle"]
LEFT_OUT = (
    "contenders without a target, the latency of rivals, who lets others wait for a slow record,"
    f" and the parts {', '.join(name for name in PARTS if name not in QUICK_NAMES)}"
)


class Benchmark:
    """Measures contenders, each once in a round; those without a target in fewer rounds."""

    def __init__(
        self, place: Place, size: Size, contenders: tuple[Contender, ...], progress: Progress
    ) -> None:
        self._place = place
        self._size = size
        self._contenders = contenders
        self._progress = progress
        self.rates = progress.rates
        for contender in contenders:
            self.rates.setdefault(contender.name, [])

    def run(self) -> None:
        for number in range(1, self._size.rounds + 1 if self._contenders else 1):
            print(f"round {number} of {self._size.rounds}", flush=True)
            for contender in self._present():
                if number > self._rounds(contender) or len(self.rates[contender.name]) >= number:
                    continue  # had enough, or ran before an interruption
                try:
                    with self._progress.timed(contender.name):
                        measured = self._measured(contender, number)
                except Unavailable as why:
                    self._leave_out(contender.rival, why)
                except Broken as why:
                    if not contender.rival:
                        raise
                    self._leave_out(contender.name, why)
                else:
                    self.rates[contender.name].append(measured.records / measured.seconds)
                    self._progress.memory.setdefault(contender.name, []).append(measured.peak_bytes)
                    self._progress.save()

    def _rounds(self, contender: Contender) -> int:
        often = contender.name in WITH_TARGET or contender.name in REFERENCES
        return self._size.rounds if often else self._size.untargeted_rounds

    def _leave_out(self, name: str, why: Exception) -> None:
        self._progress.absent[name] = str(why)
        self._progress.save()
        print(f"  {name:<44} left out: {why}", flush=True)

    def _present(self) -> list[Contender]:
        absent = self._progress.absent.keys()
        return [each for each in self._contenders if not {each.rival, each.name} & absent]

    def _measured(self, contender: Contender, number: int) -> Measured:
        def measure(again: int) -> Measured:
            return self._measure(contender, f"bench-{contender.name}-{number}-{again}")

        def line(found: Measured) -> str:
            return f"{contender.what:<44}{found.records / found.seconds:>12,.0f} records/s"

        if contender.rival:
            frameworks.prepare(contender.rival)
        measured, stolen = least_disturbed(measure, line, may_break=bool(contender.rival))
        self._progress.stolen.setdefault(contender.name, []).append(round(stolen, 4))
        return measured

    def _measure(self, contender: Contender, run: str) -> Measured:
        wanted = self._size.waiting if contender.waits else self._size.records
        wanted = round(wanted * contender.part)
        if contender.handler == COMPUTE:
            wanted = max(wanted, self._size.computed)
        if contender.rival:
            return self._framework(contender, run, wanted)
        if contender.handler:
            return ours.measure(self._place, run, contender.service(wanted), wanted)
        return self._handwritten(contender, run, wanted)

    def _framework(self, contender: Contender, run: str, wanted: int) -> Measured:
        measured = frameworks.measure(self._place, run, contender.program(wanted), wanted)
        self._progress.versions[contender.rival] = frameworks.version(self._place, run)
        return measured

    def _handwritten(self, contender: Contender, run: str, wanted: int) -> Measured:
        group = Group(self._place.kafka, run)
        records = group.begin(wanted)
        group.close()
        name, more = contender.loop or contender.name, ("--concurrency", str(contender.concurrency))
        command = handwritten.command(self._place, name, run, records, *more)
        output = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        return Measured(*json.loads(output))

    def ratio(self, name: str, other: str) -> float:
        """The median over the rounds in which both ran."""
        pairs = zip(self.rates[name], self.rates[other], strict=False)
        return statistics.median(rate / beside for rate, beside in pairs)

    def report(self) -> dict:
        """The whole report, as JSON."""
        # What was left out in a later round has figures of the earlier ones.
        measured = {contender.name for contender in self._present() if self.rates[contender.name]}
        return {
            "commit": self._progress.commit,
            "cpus": len(os.sched_getaffinity(0)),
            "size": vars(self._size),
            "versions": self._progress.versions,
            "absent": self._progress.absent | self._progress.absent_rows,
            "seconds": self._progress.seconds,
            "loop_us": self._progress.loop_us,
            "repeats": self._progress.repeats,
            "contenders": [
                {
                    "name": contender.name,
                    "what": contender.what,
                    "alone": contender.alone,
                    "records_per_second": round(statistics.median(self.rates[contender.name])),
                    "rounds": [round(rate) for rate in self.rates[contender.name]],
                    "peak_bytes": round(statistics.median(self._progress.memory[contender.name])),
                    "stolen": max(self._progress.stolen[contender.name]),
                    "probe": contender.probe,
                    "lacks": contender.lacks,
                    "ratios": {
                        other: round(self.ratio(contender.name, other), 3)
                        for other in contender.beside
                        if other in measured
                    },
                }
                for contender in self._present()
            ],
            "targets": [
                {"name": name, "to": other, "least": least, "ratio": self.ratio(name, other)}
                for name, other, least in TARGETS
                if {name, other} <= measured
            ],
        }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="kworker beside what people write instead.")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one short round of the contenders with a target, kworker's latency and its life"
        f" cycle, in 5 minutes; it leaves out {LEFT_OUT}",
    )
    parser.add_argument("--rounds", type=int, help="how often each contender runs")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=ALL_NAMES,
        help=f"only these contenders, or parts: {', '.join(PARTS)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep each measurement there, and go on with those of an interrupted run; what it"
        " left out is tried again",
    )
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    size = QUICK if arguments.quick else FULL
    if rounds := arguments.rounds:
        size = replace(size, rounds=rounds, untargeted_rounds=rounds)
    names = arguments.only or (QUICK_NAMES if arguments.quick else ALL_NAMES)
    chosen = tuple(contender for contender in CONTENDERS if contender.name in names)
    parts = {name: part for name, part in PARTS.items() if name in names}
    progress, began = Progress(arguments.resume, vars(size)), time.monotonic()
    progress.versions |= environments.versions()
    with servers(".bench", redis=True) as place:
        print(f"filling topics with {size.records:,} records", flush=True)
        fill(place.kafka, TOPIC, size.records)
        fill(place.kafka, PACED, 0)
        for topic, key, part in (
            (DISTINCT, distinct_key, DISTINCT_PART),
            (HOT, hot_key, HOT_PART),
        ):
            if any(contender.topic == topic for contender in chosen):
                fill(place.kafka, topic, round(size.records * part), key=key)
        benchmark = Benchmark(place, size, chosen, progress)
        benchmark.run()
        if chosen:
            print(f"contenders: {minutes(progress.seconds, ALL_CONTENDERS)}", flush=True)
        found = {name: _part(place, size, progress, name) for name in parts}
    report = benchmark.report() | found
    if arguments.json:  # first, so that a fault in a table does not cost the figures
        arguments.json.write_text(json.dumps(report, indent=1))
    met = [show(report)] if chosen else []
    met += [parts[name].show(rows) for name, rows in found.items()]
    print(f"\nthis run took {(time.monotonic() - began) / 60:.1f} min")
    print(spent(progress.seconds, PARTS))
    return 0 if all(met) else 1


def _part(place: Place, size: Size, progress: Progress, name: str) -> Any:
    def measure() -> Any:
        print(name, flush=True)
        return PARTS[name].measure(place, size, progress.absent_rows)

    found = progress.part(name, measure)
    print(f"{name}: {minutes(progress.seconds, [name])}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
