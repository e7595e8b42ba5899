"""Spark's JVM is killed, its disk is full: workers do not notice, and the tables are complete."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pandas
import psutil
import pytest

from tests.support import kafka, written
from tests.support.evidence import Evidence, gather
from tests.support.kafka import Writer, numbered
from tests.support.ledgers import At
from tests.support.service import Service, named, service, stop
from tests.support.small_disk import SmallDisk, allowed
from tests.support.tables import Reader
from tests.support.waiting import eventually

Topic = Callable[..., str]
Rows = Counter[tuple[str, int, int]]

# Of each format by turns, every other one with the job; for a proof 30, ten of each.
KILLS = int(os.environ.get("PROOF_SPARK_KILLED", "4"))

pytestmark = pytest.mark.timeout(1200 + 60 * KILLS)

RECORDS = 3_000
A_ROUND, A_ROUND_S = 20, 0.1  # records, while a JVM is watched
SPARK_S = 180.0
DISK = "48m"
FORMATS = ("delta", "iceberg", "parquet")
TABLES = [
    {"name": name, "format": name, "path": f"data/{name}", "schema": "value STRING"}
    for name in FORMATS
]
SETTINGS: dict[str, dict[str, Any]] = {
    "workers": {"processes": 2},
    "spark": {"trigger": "200ms", "tables": TABLES},
}
ALLOWED = allowed()


class Landing:
    """A service whose tables are on a disk that can be filled, where the machine allows that."""

    def __init__(self, running: Service, writer: Writer, source: str, results: str) -> None:
        self.service = running
        self.results = results
        self.disk = SmallDisk(running.folder / "data", DISK)
        self.writer = writer
        self._feed = self._fed(source)

    def serve(self) -> None:
        self.service.serve(enter=self.disk.enter if ALLOWED else None)

    @property
    def data(self) -> Path:
        """The tables and their checkpoints, as the service sees them."""
        folder = self.service.folder / "data"
        return self.disk.seen_by(self.service.pid) if ALLOWED else folder

    def feed(self) -> None:
        """To be called again and again: a few records more now and then."""
        next(self._feed)

    def _fed(self, source: str) -> Iterator[None]:
        for number in count(RECORDS, A_ROUND):
            self.writer.begin(source, numbered(A_ROUND, keys=100, first=number))
            again_at = time.monotonic() + A_ROUND_S
            while time.monotonic() < again_at:
                yield
            self.writer.hear()

    def kill_between(self, table: str, *, and_job: bool = False) -> int:
        """`kill -9` of the JVM when a batch is in the table, and its checkpoint does not say so.

        Stopped first, so that it stays so; the batch. Perhaps of the job, too, which has it. The
        status says so until the job starts again: for a second, if it had run for long.
        """
        checkpoint, in_table = self.data / "_checkpoints" / table, written.IN[table]
        before = written.noted(checkpoint)

        def writes() -> bool:
            self.feed()
            return written.noted(checkpoint) > before

        def between() -> int | None:
            batch = written.planned(checkpoint)
            not_noted = batch > written.noted(checkpoint)
            return batch if not_noted and in_table(self.data / table) == batch else None

        def caught() -> int | None:
            self.feed()
            if between() is not None:
                stop(process)
                if (batch := between()) is not None:
                    return batch
                process.resume()
            return None

        eventually(writes, timeout_s=SPARK_S, what=f"{table} is written")
        process = jvm(self.service)
        batch = eventually(caught, timeout_s=SPARK_S, every_s=0.001, what=f"{table} is between")
        if and_job:
            psutil.Process(process.ppid()).kill()
        process.kill()
        eventually(lambda: self.service.state() == "red", every_s=0.01, what="it is told")
        eventually(lambda: not process.is_running(), every_s=0.001, what="the JVM is gone")
        assert between() == batch, "the run is invalid: it was not stopped in time"
        assert batch
        return batch

    def fill_disk(self) -> dict[str, str]:
        """Until every table says so; what they say. Then there is room again."""
        if not ALLOWED:
            return {}
        self.disk.fill(self.service.pid)

        def told() -> dict[str, str] | None:
            self.feed()
            found = {t["name"]: t["reason"] for t in self.service.status()["spark"]["tables"]}
            return found if all(found.values()) else None

        found = eventually(told, timeout_s=SPARK_S, what="every table is in want of room")
        self.disk.make_room(self.service.pid)
        return found

    def land(self) -> None:
        """Waits until all that was written is in the tables, and keeps them."""
        self.writer.finish()
        self.service.caught_up()
        ends = kafka.ends(self.service.bootstrap, self.results)
        eventually(lambda: self._landed() == [ends] * len(FORMATS), timeout_s=SPARK_S, every_s=0.2)
        self.service.is_running()
        if ALLOWED:
            self.disk.keep(self.service.pid)

    def _landed(self) -> list[dict[At, int]]:
        """How far the tables have read the results, by their own groups."""
        groups = (f"{self.service.name}.spark.{table}" for table in FORMATS)
        return [kafka.committed(self.service.bootstrap, group) for group in groups]


class Run(NamedTuple):
    """What was done, and what stood there in the end."""

    killed: dict[str, int]  # by format, the batch that was written and not noted
    wanting: dict[str, str]  # by format, what was said of the full disk
    restarts: list[int]
    pids: list[dict[int, int]]  # of the workers, before and after
    evidence: Evidence
    once: Rows
    rows: dict[str, Rows]
    folder: Path


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, topic: Topic, tables: Reader
) -> Run:
    folder = tmp_path_factory.mktemp("killed")
    source = topic("proof", partitions=4)
    results = topic("proof-results", message_timestamp_type="LogAppendTime")
    settings = {**SETTINGS, "delivery": {"results": results}}
    writer = Writer(bootstrap, folder / "produced")
    with service(folder / "service", bootstrap, [source], settings=settings) as running:
        landing = Landing(running, writer, source, results)
        landing.serve()
        pids = running.worker_pids()
        writer.write(source, numbered(RECORDS, keys=100))
        killed = {}
        for number, name in enumerate(islice(cycle(FORMATS), KILLS)):
            killed[name] = landing.kill_between(name, and_job=number % 2 == 1)
        running.is_running()
        wanting = landing.fill_disk()
        landing.land()
        restarts = [row["restarts"] for row in running.workers().values()]
        both = [pids, running.worker_pids()]
        running.ends_well()
    found = gather(running, writer.acked, results)
    once = Counter(record.position for record in writer.acked)
    landed = rows(running, tables)
    return Run(killed, wanting, restarts, both, found, once, landed, running.folder)


def test_workers_go_on_as_before_while_there_is_no_spark(run: Run) -> None:
    """The results topic is the buffer."""
    assert run.restarts == [0, 0]
    assert run.pids[0] == run.pids[1]
    assert (run.evidence.contradictions(), run.evidence.repeated) == ({}, [])


def test_a_batch_written_and_not_noted_at_a_kill_is_there_once(
    run: Run,
) -> None:
    """The batch comes again, and each format knows it by its number."""
    print(f"killed when these batches were written and not noted: {run.killed}")
    assert run.killed.keys() == set(FORMATS)
    assert run.rows == dict.fromkeys(FORMATS, run.once)


@pytest.mark.skipif(not ALLOWED, reason="needs a file system of its own")
def test_a_full_disk_is_told_and_survived(run: Run) -> None:
    """The tables go on by themselves when there is room again, and are complete."""
    assert run.wanting.keys() == set(FORMATS)
    for reason in run.wanting.values():
        assert "No space left on device" in reason
    assert run.rows == dict.fromkeys(FORMATS, run.once)


def test_plain_files_hold_each_row_once_for_every_reader(run: Run) -> None:
    """Who knows nothing of kworker reads whatever is in the folder."""
    folder = run.folder / "data" / "parquet"
    found = duckdb.connect().read_parquet(f"{folder}/**/*.parquet")
    keys = "source_topic, source_partition, source_offset"
    assert Counter(found.project(keys).fetchall()) == run.once
    frame = pandas.read_parquet(folder)
    assert Counter(frame[keys.split(", ")].itertuples(index=False, name=None)) == run.once


def jvm(landing: Service) -> psutil.Process:
    """The one that the Spark job started."""
    [found] = named("java", landing.processes())
    return found


def rows(landing: Service, tables: Reader) -> dict[str, Rows]:
    """How often each source position stands in each table, read by another process."""
    return {
        name: Counter(
            (row["source_topic"], row["source_partition"], row["source_offset"]) for row in found
        )
        for name, found in tables.rows(landing.config).items()
    }
