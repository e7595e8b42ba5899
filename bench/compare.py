"""`python -m bench.compare before=CHECKOUT after=CHECKOUT`: versions of kworker, side by side.

The CPUs of a virtual machine may be twice as fast from one moment to the next, since neighbours
have the other half of their cores: runs one after the other differ by a third and more. So the
services of all versions are started on the same records, paused with SIGSTOP, and go on in turns,
which are shorter than what neighbours do. Their handlers mark the time every few hundred records:
the rate is that of the records between two marks in the turns between them. A version given twice,
with two names, shows how much is still chance.

A checkout needs a `make install` of its own. In each figure, more is better: records a second,
records a second of the worker's CPU time, and for tables and latencies the inverse of the seconds.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench import latency, marks, ours, tables
from bench.contenders import CONTENDERS, Contender
from bench.paced import Pace, pace
from bench.pausing import Pausing
from bench.place import Place, servers
from bench.run import FULL
from bench.topic import TOPIC, create, fill
from bench.watched import START_S, Broken

PACED_S, UNMEASURED_S = 4.0, 0.5
TURN_S = 0.05
LONG_TURN_S = 1.0  # where handlers sleep, which they also do while they are paused
LOOK_S = 0.005
ROWS = {
    each.name: each
    for each in CONTENDERS
    if each.handler
    and not each.rival
    and not each.rest
    and each.topic == TOPIC
    # Of several processes, the first has done much before the last has its partitions.
    and each.processes == 1
}
PARTS = ("latency", "tables")

Found = dict[str, dict[str, list[float]]]
"""The figures of each version, by row."""


class Version(NamedTuple):
    """A checkout of kworker, by the name that its figures have."""

    name: str
    kworker: Path


def rates(
    place: Place,
    contenders: Sequence[Contender],
    versions: Sequence[Version],
    rounds: int,
    share: float,
) -> Found:
    """Measures rates in rounds, with this share of the records of `make bench`.

    Raises Broken if a version ends, or does not do each record once.
    """
    found: Found = {}
    if not contenders:
        return found
    fill(place.kafka, TOPIC, round(FULL.records * share))
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        # Each version is the first in some of the rounds.
        order = [*versions[number % len(versions) :], *versions[: number % len(versions)]]
        for contender in contenders:
            by_version = _in_turns(place, contender, order, number, share)
            told = []
            for version in versions:
                by_time, by_cpu_time = by_version[version.name]
                for row, rate in (
                    (contender.name, by_time),
                    (f"{contender.name}, CPU", by_cpu_time),
                ):
                    found.setdefault(row, {}).setdefault(version.name, []).append(rate)
                told.append(f"{version.name} {by_time:>9,.0f}/s")
            print(f"  {contender.name:<28}{'   '.join(told)}", flush=True)
    return found


def _in_turns(
    place: Place, contender: Contender, versions: Sequence[Version], number: int, share: float
) -> dict[str, tuple[float, float]]:
    """Returns the rates of each version, by time and by CPU time, when they work in turns."""
    records = round((FULL.waiting if contender.waits else FULL.records) * contender.part * share)
    each = marks.mark_each(records)
    turn_s = LONG_TURN_S if contender.handler.startswith("wait") else TURN_S
    with ExitStack() as started:
        services = [
            started.enter_context(_begun(place, contender, version, number, records))
            for version in versions
        ]
        done = 0
        while done < marks.MARKS - marks.EDGES:
            for service in services:
                service.pausing.go_on()
                time.sleep(turn_s)
                service.pausing.pause()
                if service.running.process.poll() is not None:
                    raise Broken(f"{service.run} has ended; see {place.folder / service.run}.log")
            done = max(marks.count(place.folder, service.run) for service in services)
        for service in services:
            service.pausing.go_on()
        for service in services:
            ours.end(place, service.run, service.service, service.running)
        return {
            version.name: marks.rates(place.folder, service.run, each, service.pausing.turns)
            for version, service in zip(versions, services, strict=True)
        }


class _Begun(NamedTuple):
    """A service that has begun, and is paused."""

    run: str
    service: ours.Service
    running: ours.Running
    pausing: Pausing


@contextmanager
def _begun(
    place: Place, contender: Contender, version: Version, number: int, records: int
) -> Iterator[_Begun]:
    """Starts a service, and pauses it when its handler has marked the time."""
    run = f"{contender.name}-{number}-{version.name}"
    each = marks.mark_each(records)
    service = contender.service(records)
    service = replace(service, kworker=version.kworker, mark_each=each, paused=True)
    with ours.reading(place, run, service, records) as running:
        deadline = time.monotonic() + START_S
        while not marks.count(place.folder, run):
            if running.process.poll() is not None or time.monotonic() > deadline:
                raise Broken(f"{run} has not begun; see {place.folder / run}.log")
            time.sleep(LOOK_S)
        pausing = Pausing(running.process.pid)
        try:
            yield _Begun(run, service, running, pausing)
        finally:
            pausing.go_on()


def latencies(
    place: Place, label: str, service: ours.Service, versions: Sequence[Version], rounds: int
) -> Found:
    """Gives each version records at a fixed pace, in turns, and compares the delays of results."""
    found: Found = {f"{label}, {what}": {} for what in ("median", "p99")}
    with ExitStack() as started:
        paced = {
            version.name: started.enter_context(_paced(place, service, version, label))
            for version in versions
        }
        order = list(paced)
        for _ in range(rounds):
            told = []
            for name in order:
                pausing, pacing = paced[name]
                pausing.go_on()
                pacing.keep(UNMEASURED_S)
                cuts = statistics.quantiles(pacing.keep(PACED_S), n=100)
                pausing.pause()
                for what, cut in (("median", 49), ("p99", 98)):
                    found[f"{label}, {what}"].setdefault(name, []).append(1000 / cuts[cut])
                told.append(f"{name} {cuts[49]:.1f} ms median, {cuts[98]:.1f} p99")
            print(f"  {label:<24}{'   '.join(sorted(told))}", flush=True)
            order.reverse()
    return found


@contextmanager
def _paced(
    place: Place, service: ours.Service, version: Version, label: str
) -> Iterator[tuple[Pausing, Pace]]:
    run = f"{label}-{version.name}".replace(" ", "-")
    topic = f"{run}.paced"
    create(place.kafka, topic)
    service = replace(service, topic=topic, kworker=version.kworker, paused=True)
    environment = service.environment(place, run)
    with (
        ours.started_at_the_end(place, run, topic, environment) as process,
        pace(place.kafka, f"{run}.results", topic) as pacing,
    ):
        pacing.begin()
        pausing = Pausing(process.pid)
        try:
            yield pausing, pacing
        finally:
            pausing.go_on()


def into_tables(place: Place, versions: Sequence[Version], rounds: int) -> Found:
    """Compares the Spark jobs: in each round all run once in order, and once in reverse order."""
    found: Found = {}
    tables.fill_topics(place, FULL.landed, 3 * FULL.landed)
    for version in versions:
        tables.warm_up(place, "kworker", version.name, version.kworker)
    for number in range(rounds):
        taken: dict[str, list[tables.Figures]] = {version.name: [] for version in versions}
        for turn, version in enumerate((*versions, *reversed(versions))):
            run = f"{version.name}-{number}-{turn}"
            figures = tables.figures_of(place, "kworker", run, version.kworker)
            print(f"  {version.name:<24}{tables.line(figures)}", flush=True)
            taken[version.name].append(figures)
        for name, both in taken.items():
            for row, more in (
                ("table, cold", [1 / each.cold_s for each in both]),
                ("table, nothing new", [1 / each.empty_s for each in both]),
                ("table, warm", [each.warm for each in both]),
            ):
                found.setdefault(row, {}).setdefault(name, []).append(statistics.mean(more))
    return found


def summary(found: Found) -> Iterator[str]:
    """Yields a line for each row: how each version compares with the first one, in the rounds."""
    for row, figures in found.items():
        base, *others = figures
        told = []
        for name in others:
            ratios = [new / old for old, new in zip(figures[base], figures[name], strict=True)]
            span = f"({min(ratios):.2f} … {max(ratios):.2f})"
            told.append(f"{name} / {base} {statistics.median(ratios):.3f} {span}")
        yield f"{row:<32}{'   '.join(told)}"


def _tell(found: Found, file: Path | None) -> None:
    """Prints a summary, and writes all figures so far: what comes later may fail."""
    print(*summary(found), sep="\n", flush=True)
    if file:
        file.write_text(json.dumps(found, indent=1))


def _version(text: str) -> Version:
    name, equals, checkout = text.partition("=")
    kworker = Path(checkout).resolve() / ".venv/bin/kworker"
    if not (name and equals and kworker.exists()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=CHECKOUT with a `make install`")
    return Version(name, kworker)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("versions", nargs="+", type=_version, metavar="NAME=CHECKOUT")
    parser.add_argument("--rounds", type=int, default=5, help="how often each row runs; default 5")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the records of `make bench`; default 1"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="ROW",
        choices=[*ROWS, *PARTS],
        default=[*ROWS, *PARTS],
        help=f"only these: {', '.join([*ROWS, *PARTS])}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args(argv)
    if len({version.name for version in arguments.versions}) < max(2, len(arguments.versions)):
        parser.error("give two versions or more, each with a name of its own")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    versions, rounds = arguments.versions, arguments.rounds
    chosen = [contender for name, contender in ROWS.items() if name in arguments.only]
    with servers(".bench-compare", redis=True) as place:
        found = rates(place, chosen, versions, rounds, arguments.share)
        _tell(found, arguments.json)
        if "latency" in arguments.only:
            for label, exactly_once in (("at least once", False), ("exactly once", True)):
                service = replace(latency.WORKER, exactly_once=exactly_once)
                found |= latencies(place, label, service, versions, rounds)
        if "tables" in arguments.only:
            found |= into_tables(place, versions, rounds)
        _tell(found, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
