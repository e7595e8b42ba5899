"""`python -m bench.compare before=CHECKOUT after=CHECKOUT`: versions of kworker, side by side.

The CPUs of a virtual machine may be twice as fast from one moment to the next, since neighbours
have the other half of their cores: runs one after the other differ by a third and more. So the
handler marks the time every few hundred records, and the slices between marks are compared, of all
rounds: the rate that a tenth of them exceed, when the CPUs were fast, and the median. That leaves
chance of more than a few per cent: a version given twice, with two names, shows how much. For
latencies, the services of all versions are started, paused with SIGSTOP, and go on in turns.

A checkout needs a `make install` of its own. In each figure, more is better: records a second,
records a second of the worker's CPU time, and for tables and latencies the inverse of the seconds.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench import latency, marks, ours, tables
from bench.contenders import CONTENDERS, Contender
from bench.paced import Pace, pace
from bench.pausing import LONG_SESSION, Pausing
from bench.place import Place, servers
from bench.run import FULL
from bench.topic import TOPIC, create, fill
from bench.watched import Broken

PACED_S, UNMEASURED_S = 4.0, 0.5
ROWS = {
    each.name: each
    for each in CONTENDERS
    if each.handler and not each.rival and not each.rest and each.topic == TOPIC
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
    """Measures the rates of slices in rounds, with this share of the records of `make bench`.

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
            records = FULL.waiting if contender.waits else FULL.records
            records = round(records * contender.part * share)
            each = marks.mark_each(records)
            told = []
            for version in order:
                run = f"{contender.name}-{number}-{version.name}"
                service = contender.service(records)
                service = replace(service, kworker=version.kworker, mark_each=each)
                ours.measure(place, run, service, records)
                slices = list(marks.rates(place.folder, run, each))
                if len(slices) < marks.SLICE:
                    raise Broken(f"{run}: {records:,} records are too few; give a larger --share")
                by_time, by_cpu_time = ([pair[i] for pair in slices] for i in (0, 1))
                for row, column in (
                    (contender.name, by_time),
                    (f"{contender.name}, CPU", by_cpu_time),
                ):
                    found.setdefault(row, {}).setdefault(version.name, []).extend(column)
                told.append(f"{version.name} {fast(by_time):>9,.0f}/s")
            print(f"  {contender.name:<28}{'   '.join(sorted(told))}", flush=True)
    return found


def fast(slices: Iterable[float]) -> float:
    """Returns the rate that a tenth of the slices exceed: those on fast CPUs."""
    return statistics.quantiles(slices, n=10)[8]


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
    service = replace(service, topic=topic, kworker=version.kworker)
    environment = service.environment(place, run) | LONG_SESSION
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
    """Compares the Spark jobs, one after the other."""
    found: Found = {}
    tables.fill_topics(place, FULL.landed, 3 * FULL.landed)
    for version in versions:
        tables.warm_up(place, "kworker", version.name, version.kworker)
    order = list(versions)
    for number in range(rounds):
        for version in order:
            run = f"{version.name}-{number}"
            figures = tables.figures_of(place, "kworker", run, version.kworker)
            print(f"  {version.name:<24}{tables.line(figures)}", flush=True)
            for row, more in (
                ("table, cold", 1 / figures.cold_s),
                ("table, nothing new", 1 / figures.empty_s),
                ("table, warm", figures.warm),
            ):
                found.setdefault(row, {}).setdefault(version.name, []).append(more)
        order.reverse()
    return found


def slice_summary(found: Found) -> Iterator[str]:
    """Yields a line for each row: how the slices of each version compare with the first one's."""
    for row, figures in found.items():
        base, *others = figures
        told = []
        for name in others:
            at_best = fast(figures[name]) / fast(figures[base])
            median = statistics.median(figures[name]) / statistics.median(figures[base])
            told.append(f"{name} / {base} {at_best:.3f} (median {median:.3f})")
        yield f"{row:<32}{'   '.join(told)}"


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


def _tell(lines: Iterable[str], found: Found, file: Path | None) -> None:
    """Prints a summary, and writes all figures so far: what comes later may fail."""
    print(*lines, sep="\n", flush=True)
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
        slices = rates(place, chosen, versions, rounds, arguments.share)
        _tell(slice_summary(slices), slices, arguments.json)
        found: Found = {}
        if "latency" in arguments.only:
            for label, exactly_once in (("at least once", False), ("exactly once", True)):
                service = replace(latency.WORKER, exactly_once=exactly_once)
                found |= latencies(place, label, service, versions, rounds)
        if "tables" in arguments.only:
            found |= into_tables(place, versions, rounds)
        _tell(summary(found), slices | found, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
