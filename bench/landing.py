"""From a topic into a Delta table: kworker beside a Spark job whose UDF is the handler.

Both run when the records come. The time is from the first record written to the last one in the
table; the writing itself is a part of it, for both.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import frameworks, ours, tables
from bench.disturbance import least_disturbed
from bench.place import ROOT, Place
from bench.topic import append, create
from bench.udf_spark import SCHEMA
from bench.watched import START_S, Broken

LOOK_S = 0.1
SLOWEST = 100.0  # records a second
WARM_UPS = 2
CONFIG = """
name = "{name}"
handler = "handlers:{handler}"
state_dir = "state"
[source]
topics = ["{name}"]
[kafka]
"bootstrap.servers" = "{servers}"
[workers]
processes = 1
[console]
listen = ""
[spark]
trigger = "1s"
checkpoints = "checkpoints"
[spark.conf]
"spark.driver.memory" = "4g"
[[spark.tables]]
name = "orders"
path = "table"
schema = "{schema}"
"""


class Case(NamedTuple):
    """One handler, for each of the two, and the number of records that each gets."""

    what: str
    ours: str
    theirs: str
    our_records: int
    their_records: int
    warm_up: int
    least: float


CASES = (
    Case("JSON decoded", "decoded", "decoded", 1_000_000, 1_000_000, 20_000, 1.5),
    Case("a call of 10 ms", "called_async", "called", 200_000, 4_000, 200, 30.0),
)


class Running(NamedTuple):
    """A table, and the process that fills it."""

    table: Path
    process: subprocess.Popen[bytes]


class Row(NamedTuple):
    """One handler: the records a second of each round.

    `stolen` is the largest share of the CPU that others took during one of these measurements.
    """

    what: str
    ours: list[float]
    theirs: list[float]
    least: float
    stolen: float = 0.0

    @property
    def ratio(self) -> float:
        return median(a / b for a, b in zip(self.ours, self.theirs, strict=True))


def measure(place: Place, rounds: int, share: float) -> list[dict]:
    """Measures both with this share of the records, in rounds. Prints each."""
    rows = [Row(case.what, [], [], case.least) for case in CASES]
    for number in range(rounds):
        rows = [
            _with_round(place, row, case, number, share)
            for row, case in zip(rows, CASES, strict=True)
        ]
    return [row._asdict() for row in rows]


def _with_round(place: Place, row: Row, case: Case, number: int, share: float) -> Row:
    """Returns the row with both rates of one more round."""
    run = f"landing-{case.ours}-{number}".replace("_", "-")

    def measure_theirs(again: int) -> float:
        with _udf(place, f"{run}-udf-{again}", case.theirs) as job:
            return _rate(place, job, case, round(case.their_records * share))

    def measure_ours(again: int) -> float:
        with _kworker(place, f"{run}-kworker-{again}", case.ours) as job:
            return _rate(place, job, case, round(case.our_records * share))

    theirs, theirs_stolen = least_disturbed(
        measure_theirs, lambda rate: f"{case.what:<16}{_told(rate, 'UDF')}", may_break=True
    )
    ours, ours_stolen = least_disturbed(
        measure_ours, lambda rate: f"{case.what:<16}{_told(rate, 'kworker')}"
    )
    return row._replace(
        ours=[*row.ours, ours],
        theirs=[*row.theirs, theirs],
        stolen=max(row.stolen, round(theirs_stolen, 4), round(ours_stolen, 4)),
    )


@contextmanager
def _udf(place: Place, run: str, handler: str) -> Iterator[Running]:
    folder = _prepared(place, run)
    command = [sys.executable, "-m", "bench.udf_spark", place.kafka, run, str(folder), handler]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with frameworks.started(command, environment, folder / "log") as process:
        yield Running(folder / "table", process)


@contextmanager
def _kworker(place: Place, run: str, handler: str) -> Iterator[Running]:
    folder = _prepared(place, run)
    file = folder / "kworker.toml"
    file.write_text(CONFIG.format(name=run, handler=handler, servers=place.kafka, schema=SCHEMA))
    environment = {
        **os.environ,
        "KWORKER_CONFIG": str(file),
        "PYTHONPATH": str(ours.HERE),
        "BENCH_BEGUN": str(folder / "begun"),
    }
    ours.command(environment, "topics", "create")
    with ours.started(environment, folder / "log") as process:
        yield Running(folder / "table", process)


def _prepared(place: Place, run: str) -> Path:
    """Makes a folder, and a topic of the same name."""
    create(place.kafka, run)
    folder = place.folder / run
    folder.mkdir()
    return folder


def _rate(place: Place, job: Running, case: Case, records: int) -> float:
    """Writes records, and returns how many a second got into the table."""
    topic = job.table.parent.name
    for number in range(1, WARM_UPS + 1):
        append(place.kafka, topic, case.warm_up)
        _wait(job, number * case.warm_up)
    began = time.monotonic()
    append(place.kafka, topic, records)
    _wait(job, WARM_UPS * case.warm_up + records)
    return records / (time.monotonic() - began)


def _wait(job: Running, records: int) -> None:
    """Waits until the table has so many rows. Raises Broken if they do not come, or more do."""
    table = job.table
    deadline = time.monotonic() + START_S + records / SLOWEST
    rows: dict[Path, int] = {}
    while sum(rows.values()) < records:
        if time.monotonic() > deadline or job.process.poll() is not None:
            raise Broken(f"{table} has {sum(rows.values()):,} rows of {records:,}")
        time.sleep(LOOK_S)
        rows |= {path: tables.commit(path)[1] for path in tables.log(table) if path not in rows}
    if sum(rows.values()) > records:
        raise Broken(f"{table} has {sum(rows.values()):,} rows, of {records:,} records")


def show(rows: Sequence[dict]) -> bool:
    """Prints the table and the verdicts; returns True if every target is met."""
    print("\nfrom a topic into a Delta table, beside a Spark job with the handler as Python UDF\n")
    lines = [Row(**row) for row in rows]
    for row in lines:
        verdict = "PASS" if row.ratio >= row.least else "FAIL"
        figures = f"{_told(median(row.theirs), 'UDF')}{_told(median(row.ours), 'kworker')}"
        wanted = f"{row.ratio:.2f} ×, and must be at least {row.least:g}"
        print(f"{verdict}  {row.what:<16}{figures}: {wanted}")
    return all(row.ratio >= row.least for row in lines)


def _told(rate: float, whose: str) -> str:
    return f"{rate:>9,.0f} records/s {whose}"
