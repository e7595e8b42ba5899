"""Compares the Spark job with pyspark alone: from the results topic into a Delta table."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.bare_spark import SCHEMA
from bench.disturbance import least_disturbed
from bench.place import KWORKER, ROOT, Place
from bench.topic import RECORD_BYTES, fill

COLD, WARM = "tables-cold", "tables-warm"
COLD_BATCH, WARM_BATCH = 500_000, 100_000
UNMEASURED = 2  # first runs of each: the second run on a host saves Spark's classes
SETTLING = 2  # first batches, while Spark still compiles
CONFIG = """
name = "{name}"
handler = "none:none"
state_dir = "state"
[source]
topics = ["orders"]
[delivery]
results = "{topic}"
[kafka]
"bootstrap.servers" = "{servers}"
[spark]
checkpoints = "checkpoints"
batch_records = {batch}
[spark.conf]
"spark.driver.memory" = "4g"
[[spark.tables]]
name = "orders"
path = "table"
schema = "{schema}"
"""


class Figures(NamedTuple):
    """The figures of one contender in one round; `stolen` is the share of CPU that others took."""

    cold_s: float  # duration of a process that reads all results
    empty_s: float  # the same with nothing new
    warm: float  # records/s in batches of a running job
    stolen: float = 0.0


class Target(NamedTuple):
    """A target: the worst allowed ratio of the job's figure to that of pyspark alone.

    `stolen` is the largest share of the CPU that others took during a figure that counts.
    """

    what: str
    ratio: float
    bound: float
    met: bool
    stolen: float = 0.0


def measure(place: Place, rounds: int, cold: int, warm: int) -> dict:
    """Measures each in turn, in rounds, with these numbers of records. Prints each."""
    fill_topics(place, cold, warm)
    found: dict[str, list[Figures]] = {"pyspark": [], "kworker": []}
    for name in found:
        warm_up(place, name, f"tables-{name}")
    for number in range(1, rounds + 1):
        for name, figures in found.items():
            figures.append(_measured(place, name, f"tables-{name}-{number}"))
    ours, bare = found["kworker"], found["pyspark"]
    ratios = {
        "a backlog, cold": [b.cold_s / o.cold_s for o, b in zip(ours, bare, strict=True)],
        "warm batches": [o.warm / b.warm for o, b in zip(ours, bare, strict=True)],
        "nothing new": [b.empty_s / o.empty_s for o, b in zip(ours, bare, strict=True)],
    }
    stolen = max(each.stolen for each in (*ours, *bare))
    targets = [_target(what, each, stolen) for what, each in ratios.items()]
    rows = {name: [each._asdict() for each in figures] for name, figures in found.items()}
    return {"rounds": rows, "targets": [target._asdict() for target in targets]}


BOUNDS = {"a backlog, cold": 0.95, "warm batches": 0.95, "nothing new": 1 / 1.3}


def _measured(place: Place, name: str, run: str) -> Figures:
    """Returns the figures of the try that counts."""
    figures, stolen = least_disturbed(
        lambda again: figures_of(place, name, f"{run}-{again}"),
        lambda figures: f"{name:<10}{line(figures)}",
    )
    return figures._replace(stolen=round(stolen, 4))


def _target(what: str, ratios: Sequence[float], stolen: float = 0.0) -> Target:
    ratio = median(ratios)
    return Target(what, ratio, BOUNDS[what], ratio >= BOUNDS[what], stolen)


def show(report: dict) -> bool:
    """Prints the verdicts; returns True if every target is met."""
    print(f"\ninto a Delta table, results of {RECORD_BYTES} bytes, beside pyspark alone\n")
    for target in (Target(**each) for each in report["targets"]):
        verdict = "PASS" if target.met else "FAIL"
        least = f"and must be {target.bound:.2f} at least"
        print(f"{verdict}  {target.what}: {target.ratio:.3f} × as fast, {least}")
    return all(each["met"] for each in report["targets"])


def line(figures: Figures) -> str:
    seconds = f"{figures.cold_s:>6.1f} s cold{figures.empty_s:>6.1f} s empty"
    return f"{seconds}{figures.warm:>10,.0f} records/s warm"


def fill_topics(place: Place, cold: int, warm: int) -> None:
    """Writes results for a start on a backlog, and for many batches."""
    print(f"filling topics with {cold:,} and {warm:,} results", flush=True)
    fill(place.kafka, COLD, cold, sources=True)
    fill(place.kafka, WARM, warm, sources=True)


def warm_up(place: Place, name: str, run: str, kworker: Path = KWORKER) -> None:
    """Runs what is not measured, so that Spark's classes are saved on this host."""
    for number in range(UNMEASURED):
        cold = _command(place, name, f"{run}-unmeasured-{number}", COLD, COLD_BATCH, kworker)
        _seconds(cold)


def figures_of(place: Place, name: str, run: str, kworker: Path = KWORKER) -> Figures:
    """Measures one contender once; `kworker` is the command, of this checkout or another."""
    cold = _command(place, name, f"{run}-cold", COLD, COLD_BATCH, kworker)
    cold_s, empty_s = _seconds(cold), _seconds(cold)
    _seconds(_command(place, name, f"{run}-warm", WARM, WARM_BATCH, kworker))
    return Figures(cold_s, empty_s, _rate(place.folder / f"{run}-warm" / "table"))


def _command(place: Place, name: str, run: str, topic: str, batch: int, kworker: Path) -> list[str]:
    folder = place.folder / run
    folder.mkdir()
    if name == "pyspark":
        bare = [sys.executable, "-m", "bench.bare_spark", place.kafka, topic]
        return [*bare, str(folder), str(batch)]
    file = folder / "kworker.toml"
    file.write_text(
        CONFIG.format(name=run, topic=topic, servers=place.kafka, batch=batch, schema=SCHEMA)
    )
    return [str(kworker), "spark", "run", "--once", "--config", str(file)]


def _seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


def _rate(table: Path) -> float:
    """Records a second between the commits of batches, without the first ones."""
    commits = [commit(path) for path in log(table)]
    batches = [each for each in commits if each[1]][SETTLING:]
    seconds = sum(later[0] - one[0] for one, later in pairwise(batches)) / 1000
    return sum(records for _, records in batches[1:]) / seconds


def log(table: Path) -> list[Path]:
    """The files of the commits of a Delta table, in order."""
    return sorted((table / "_delta_log").glob("*.json"))


def commit(path: Path) -> tuple[int, int]:
    """The time of a commit in ms, and the number of records it added."""
    at_ms = records = 0
    for told in map(json.loads, path.read_text().splitlines()):
        if "commitInfo" in told:
            at_ms = told["commitInfo"]["timestamp"]
        if "add" in told:
            records += json.loads(told["add"]["stats"])["numRecords"]
    return at_ms, records
