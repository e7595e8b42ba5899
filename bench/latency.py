"""The latency of each framework at a fixed pace, and whether one slow record delays others.

Each decodes 1,000 records a second and returns a result for each. Then one record takes a second
in its handler, and the pace goes on: the worst delay beside it shows what had to wait for it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import quantiles
from typing import NamedTuple

from bench import frameworks, ours
from bench.environments import Unavailable
from bench.handlers import PROBE_S
from bench.handwritten import NO_OP_THREADS
from bench.paced import PACED, PER_SECOND, pace
from bench.place import Place
from bench.topic import Group, create
from bench.watched import Broken

HANDLER = "probed"
WORKER = ours.Service(HANDLER, NO_OP_THREADS, topic=PACED)
BY_KEY = {"BENCH_ORDERING": "KEY"}
SLACK = 0.5  # of the slow record's time
CONTENDERS: dict[str, ours.Service | frameworks.Program] = {
    "Quix Streams": frameworks.Program("quix", HANDLER, 1, topic=PACED),
    "arroyo, threads": frameworks.Program("arroyo", HANDLER, NO_OP_THREADS, topic=PACED),
    "aiokafka, tasks without order": frameworks.Program("aiokafka", HANDLER, 1_000, topic=PACED),
    "FastStream, batches": frameworks.Program("faststream", HANDLER, 1_000, topic=PACED),
    "Parallel Consumer, by key": frameworks.Program(
        "parallel-consumer", HANDLER, NO_OP_THREADS, topic=PACED, variables=BY_KEY
    ),
    "kworker": WORKER,
    "kworker, exactly once": replace(WORKER, exactly_once=True),
}


class Row(NamedTuple):
    """Milliseconds from a record to its result; `beside_ms` is the worst beside a slow record."""

    name: str
    median_ms: float
    p99_ms: float
    worst_ms: float
    beside_ms: float

    @property
    def holds_others(self) -> bool:
        """True if another record waited for the slow one."""
        return self.beside_ms - self.p99_ms > SLACK * PROBE_S * 1000


def measure(place: Place, paced_s: float) -> list[dict]:
    """Measures each contender that can run here. Prints each."""
    rows = []
    for number, (name, contender) in enumerate(CONTENDERS.items()):
        try:
            row = _row(place, f"latency-{number}", name, contender, paced_s)
        except (Unavailable, Broken) as why:
            if isinstance(contender, ours.Service):
                raise
            print(f"  {name:<32}left out: {why}", flush=True)
        else:
            print(f"  {_line(row)}", flush=True)
            rows.append(row)
    return [row._asdict() for row in rows]


def _row(
    place: Place,
    run: str,
    name: str,
    contender: ours.Service | frameworks.Program,
    paced_s: float,
) -> Row:
    results = f"{run}.results"
    with _started(place, run, contender), pace(place.kafka, results) as pacing:
        pacing.begin()
        plain = pacing.keep(paced_s)
        pacing.probe()
        beside = pacing.keep(2 * PROBE_S)
    cuts = quantiles(plain, n=100)
    return Row(name, cuts[49], cuts[98], max(plain), max(beside))


@contextmanager
def _started(
    place: Place, run: str, contender: ours.Service | frameworks.Program
) -> Iterator[None]:
    environment = contender.environment(place, run)
    if isinstance(contender, ours.Service):
        with ours.started_at_the_end(place, run, PACED, environment):
            yield
    else:
        Group.skip(place.kafka, run, PACED)
        create(place.kafka, f"{run}.results")
        log = place.folder / f"{run}.log"
        with frameworks.started(frameworks.COMMANDS[contender.rival](), environment, log):
            yield


def show(rows: Sequence[dict]) -> bool:
    """Prints the table. It has no targets, so returns True."""
    print(f"\nfrom a record to its result, {PER_SECOND:,} records/s; and beside a record of 1 s\n")
    for row in rows:
        print(_line(Row(**row)))
    return True


def _line(row: Row) -> str:
    figures = f"{row.median_ms:>7,.0f} ms median{row.p99_ms:>7,.0f} ms p99"
    held = "others wait for it" if row.holds_others else "no other waits"
    worst = f"{row.worst_ms:>7,.0f} ms worst{row.beside_ms:>8,.0f} ms beside a slow one: {held}"
    return f"{row.name:<32}{figures}{worst}"
