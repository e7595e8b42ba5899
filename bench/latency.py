"""The latency of each framework at a fixed pace, and whether one slow record delays others.

Each decodes 1,000 records a second and returns a result for each. Then one record takes a second
in its handler, and the pace goes on: the delays beside it show what had to wait for it.

That is asked of every framework in every mode that a contender has. Modes that are here for the
answer alone have a tenth of the pace, which the slowest can keep, and for a shorter time: their
latencies are no figures to be shown. Producers that gather batches wait for them as kworker's does.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import quantiles
from typing import NamedTuple

from bench import contenders, frameworks, handwritten, ours
from bench.disturbance import least_disturbed
from bench.environments import Unavailable
from bench.handlers import PROBE_S
from bench.handwritten import NO_OP_THREADS, WAIT_THREADS
from bench.paced import PACED, PER_SECOND, pace
from bench.place import ROOT, Place
from bench.topic import ALL, Group, create
from bench.watched import Broken
from kworker.config.client_properties import PRODUCER_DEFAULTS

HANDLER = "probed"
WORKER = ours.Service(HANDLER, NO_OP_THREADS, topic=PACED)
SLACK = 0.5  # of the slow record's time
# The first calls, in a JVM above all, are not measured.
FIRST_S = 3.0
ASKED_PER_SECOND, ASKED_S, ASKED_FIRST_S = 100, 1.0, 0.5  # of what is here for the answer alone
LINGER_MS = int(PRODUCER_DEFAULTS["linger.ms"])


class HandWritten(NamedTuple):
    """A contender of `bench.handwritten`, by its name there, with the handler of the probe."""

    name: str


Probed = ours.Service | frameworks.Program | HandWritten


def _program(mode: contenders.Mode, concurrency: int, *, exactly_once: bool = False) -> Probed:
    return frameworks.Program(
        mode.rival,
        HANDLER,
        concurrency,
        exactly_once=exactly_once,
        topic=PACED,
        linger_ms=LINGER_MS,
        variables=mode.variables,
    )


CONTENDERS: dict[str, Probed] = {
    contenders.QUIX.probe: _program(contenders.QUIX, 1),
    contenders.ARROYO_THREADS.probe: _program(contenders.ARROYO_THREADS, NO_OP_THREADS),
    contenders.AIOKAFKA.probe: _program(contenders.AIOKAFKA, contenders.TASKS),
    contenders.FASTSTREAM_BATCHES.probe: _program(contenders.FASTSTREAM_BATCHES, contenders.TASKS),
    contenders.PARALLEL.probe: _program(contenders.PARALLEL, NO_OP_THREADS),
    contenders.KWORKER: WORKER,
    contenders.KWORKER_ONCE: replace(WORKER, exactly_once=True),
}
ASKED: dict[str, Probed] = {
    contenders.POOL: HandWritten("pool"),
    contenders.POOL_WAITS: HandWritten("pool-waits"),
    contenders.SET_NX: HandWritten("set-nx"),
    contenders.ARROYO.probe: _program(contenders.ARROYO, 1),
    contenders.ARROYO_PROCESSES.probe: _program(contenders.ARROYO_PROCESSES, 2),
    contenders.FASTSTREAM.probe: _program(contenders.FASTSTREAM, 1),
    contenders.CELERY.probe: _program(contenders.CELERY, NO_OP_THREADS),
    contenders.PARALLEL_UNORDERED.probe: _program(contenders.PARALLEL_UNORDERED, NO_OP_THREADS),
    contenders.PARALLEL_TRANSACTIONAL.probe: _program(
        contenders.PARALLEL_TRANSACTIONAL, WAIT_THREADS, exactly_once=True
    ),
    contenders.KWORKER_TASKS: replace(
        WORKER, handler=f"{HANDLER}_async", concurrency=contenders.TASKS
    ),
    contenders.KWORKER_PARTITIONS: replace(WORKER, ordering="partition"),
    contenders.KWORKER_CLAIMS: replace(WORKER, claims=True),
}


class Row(NamedTuple):
    """Milliseconds from a record to its result, and the same beside a slow record.

    `beside_ms` is the worst there. One of an older benchmark has no `beside_p99_ms`. With
    `only_asked`, the row is there for `holds_others`: its delays are those of a hundred records.
    `stolen` is the share of the CPU that other virtual machines took.
    """

    name: str
    median_ms: float
    p99_ms: float
    worst_ms: float
    beside_ms: float
    only_asked: bool = False
    stolen: float = 0.0
    beside_p99_ms: float | None = None

    @property
    def holds_others(self) -> bool:
        """True if more than one of a hundred records waited for the slow one."""
        beside_ms = self.beside_ms if self.beside_p99_ms is None else self.beside_p99_ms
        # The p99 of a hundred is the worst of them, which any disturbance makes long.
        usual_ms = self.median_ms if self.only_asked else self.p99_ms
        return beside_ms - usual_ms > SLACK * PROBE_S * 1000


def measure(
    place: Place, paced_s: float, absent: dict[str, str], *, rivals: bool = True
) -> list[dict]:
    """Measures each contender that can run here, again while others take the CPU. Prints each try.

    Without `rivals`, only kworker, and not what is here for the answer alone. Notes in `absent`,
    as "latency of" a row, why that one is left out.
    """
    chosen = {**CONTENDERS, **ASKED} if rivals else _of_kworker()
    rows = []
    for number, (name, contender) in enumerate(chosen.items()):
        absent.pop(f"latency of {name}", None)  # of an interrupted run
        try:
            rows.append(_least_disturbed(place, f"latency-{number}", name, contender, paced_s))
        except (Unavailable, Broken) as why:
            if isinstance(contender, ours.Service):
                raise
            absent[f"latency of {name}"] = str(why)
            print(f"  {name:<36}left out: {why}", flush=True)
    return [row._asdict() for row in rows]


def _of_kworker() -> dict[str, Probed]:
    return {name: each for name, each in CONTENDERS.items() if isinstance(each, ours.Service)}


def _least_disturbed(place: Place, run: str, name: str, contender: Probed, paced_s: float) -> Row:
    def measured(again: int) -> Row:
        return _row(place, f"{run}-{again}", name, contender, paced_s)

    if isinstance(contender, frameworks.Program):
        frameworks.prepare(contender.rival)
    is_ours = isinstance(contender, ours.Service)
    row, stolen = least_disturbed(measured, _line, may_break=not is_ours)
    return row._replace(stolen=round(stolen, 4))


def _row(place: Place, run: str, name: str, contender: Probed, paced_s: float) -> Row:
    only_asked = name in ASKED
    per_second = ASKED_PER_SECOND if only_asked else PER_SECOND
    results = f"{run}.results"
    with (
        _started(place, run, contender),
        pace(place.kafka, results, per_second=per_second) as pacing,
    ):
        pacing.begin()
        pacing.keep(ASKED_FIRST_S if only_asked else FIRST_S)
        plain = pacing.keep(ASKED_S if only_asked else paced_s)
        pacing.probe()
        beside = pacing.keep(2 * PROBE_S)
    cuts = quantiles(plain, n=100)
    beside_p99_ms = quantiles(beside, n=100)[98]
    worst_ms = max(plain), max(beside)
    return Row(
        name, cuts[49], cuts[98], *worst_ms, only_asked=only_asked, beside_p99_ms=beside_p99_ms
    )


@contextmanager
def _started(place: Place, run: str, contender: Probed) -> Iterator[None]:
    if isinstance(contender, ours.Service):
        environment = contender.environment(place, run)
        with ours.started_at_the_end(place, run, PACED, environment):
            yield
        return
    Group.skip(place.kafka, run, PACED)
    results, log = f"{run}.results", place.folder / f"{run}.log"
    create(place.kafka, results)
    if isinstance(contender, HandWritten):
        more = ("--topic", PACED, "--results", results)
        command = handwritten.command(place, contender.name, run, ALL, *more)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    else:
        command = frameworks.COMMANDS[contender.rival]()
        environment = contender.environment(place, run)
    with frameworks.started(command, environment, log):
        yield


def holders(rows: Iterable[dict]) -> dict[str, bool]:
    """For each row, by its name: True if others wait for a slow record."""
    return {row["name"]: Row(**row).holds_others for row in rows}


def show(rows: Sequence[dict]) -> bool:
    """Prints the table. It has no targets, so returns True."""
    print(f"\nfrom a record to its result, {PER_SECOND:,} records/s; and beside a record of 1 s\n")
    for row in rows:
        print(_line(Row(**row)))
    return True


def _line(row: Row) -> str:
    held = "others wait for it" if row.holds_others else "no other waits"
    beside = f"{row.beside_ms:>8,.0f} ms beside a slow one: {held}"
    if row.only_asked:
        return f"{row.name:<36}{'':<47}{beside}"
    figures = f"{row.median_ms:>7,.0f} ms median{row.p99_ms:>7,.0f} ms p99"
    return f"{row.name:<36}{figures}{row.worst_ms:>7,.0f} ms worst{beside}"
