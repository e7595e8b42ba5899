"""How the Spark job goes on: progress, restarts, its lease and its end, without a JVM."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kworker.config.model import Config, KafkaSettings, SourceSettings, SparkSettings, TableSettings
from kworker.errors import ConfigError
from kworker.spark import launch
from kworker.spark.batch_limits import BatchLimits
from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.checkpoints.commit_marks import CommitMark
from kworker.spark.checkpoints.folders import LocalFolder
from kworker.spark.checkpoints.lease import Lease
from kworker.spark.launch import Launcher
from kworker.spark.progress import (
    JobState,
    ProgressFile,
    TableProgress,
    job_state,
    progress_path,
    read_progress,
    summary,
)
from kworker.spark.query import TableQuery
from kworker.spark.stop import StopRequest, end_with_parent
from kworker.spark.tables.sinks import AVAILABLE_NOW, Sink


def told_batch(batch: int, start: int, end: int, **counted: int) -> dict[str, Any]:
    """A query's progress, in Spark's words."""
    rows = counted.get("rows", 0)
    return {
        "batchId": batch,
        "numInputRows": end - start,
        "observedMetrics": {
            "taken": {"rows": rows, "rescued": counted.get("rescued", 0)},
            "read": {"foreign": counted.get("foreign", 0)},
        },
        "sources": [{"startOffset": {"r": {"0": start}}, "endOffset": {"r": {"0": end}}}],
    }


def test_rows_are_added_up_and_each_batch_counts_once() -> None:
    """Spark tells the last few batches again at each question."""
    progress = TableProgress("t")
    first, second = told_batch(0, 0, 10, rows=8, foreign=2), told_batch(1, 10, 15, rows=5)
    for told in (first, first, second, first):
        progress.add_batch(told)
    assert (progress.batch, progress.rows, progress.foreign) == (1, 13, 2)
    assert progress.behind({0: 20, 1: 5}) == 10


def test_an_idle_query_has_not_had_its_next_batch() -> None:
    """While idle it names the batch to come: taken for done, its rows would never be counted."""
    progress = TableProgress("t")
    assert not progress.add_batch(told_batch(3, 10, 10))
    assert progress.add_batch(told_batch(3, 10, 11, rows=1))


def test_a_batch_of_markers_alone_moves_the_position() -> None:
    """Else a table that is complete would look behind for ever."""
    progress = TableProgress("t")
    told = {**told_batch(0, 0, 6), "numInputRows": 0, "observedMetrics": {}}
    assert progress.add_batch(told)
    assert progress.behind({0: 6}) == 0


def test_the_lag_is_unknown_before_kafka_has_answered() -> None:
    """0 would read as complete."""
    assert summary(TableProgress("t"), {})["behind"] is None


def test_the_job_state_is_that_of_its_worst_query() -> None:
    """One word must not hide a table that stands still."""
    fine, bad = TableProgress("a", JobState.RUNNING), TableProgress("b", JobState.RESTARTING)
    assert job_state([fine, bad]) is JobState.RESTARTING
    assert job_state([fine]) is JobState.RUNNING


class Query:
    """A streaming query that fails, or has read everything, as the test says."""

    def __init__(self) -> None:
        self.isActive = True
        self.error: Exception | None = None
        self._jsq = InJava()

    def report(self, told: dict[str, Any]) -> None:
        self._jsq.reports.append(Report(told))

    def exception(self) -> Exception | None:
        return self.error


class Report:
    """A query's progress, as a Java object."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told

    def batchId(self) -> int:
        return int(self._told["batchId"])

    def json(self) -> str:
        return json.dumps(self._told)


class InJava:
    """The same there: no batch yet, and an exception without a cause."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def lastProgress(self) -> Report | None:
        return self.reports[-1] if self.reports else None

    def recentProgress(self) -> list[Report]:
        return self.reports

    def exception(self) -> "InJava":
        return self

    def get(self) -> "InJava":
        return self

    def getCause(self) -> None:
        return None


class Group:
    """A consumer group without members."""

    def __init__(self) -> None:
        self.forgotten = 0
        self.positions: dict[int, int] = {}

    def forget_published(self) -> None:
        self.forgotten += 1

    def publish(self, positions: dict[int, int]) -> None:
        self.positions = dict(positions)


def query(launch: Callable[[], Any], group: Group | None = None) -> TableQuery:
    found: Any = group or Group()
    return TableQuery(TableProgress("t"), launch, "; ".join, found, lambda: False, lambda: "")


def test_a_failed_query_starts_again_with_growing_delays() -> None:
    """A passing error passes; one that does not shall not keep the machine busy."""
    started: list[tuple[float, Query]] = []
    now = 0.0

    def launch() -> Query:
        started.append((now, Query()))
        return started[-1][1]

    table_query = query(launch)
    for tenth in range(400):
        now = tenth / 10
        if started and now > started[-1][0]:
            started[-1][1].isActive, started[-1][1].error = False, OSError("disk full")
        table_query.turn(now, may_start=True)
    delays = [round(b - a, 1) for (a, _), (b, _) in pairwise(started)]
    assert delays == [1.1, 2.1, 4.1, 8.1, 16.1]
    assert table_query.progress.state is JobState.RESTARTING
    assert table_query.progress.reason == "disk full"


def test_a_query_waits_for_its_topic() -> None:
    """An outage of Kafka, or a missing topic, is no failure."""
    table_query = query(Query)
    table_query.turn(0.0, may_start=False)
    assert table_query.progress.state is JobState.STARTING
    table_query.turn(1.0, may_start=True)
    assert table_query.progress.state is JobState.RUNNING


def test_a_query_that_has_read_everything_is_finished() -> None:
    """`--once` ends when all are."""
    running = Query()
    table_query = query(lambda: running)
    table_query.turn(0.0, may_start=True)
    running.isActive = False
    table_query.turn(1.0, may_start=True)
    assert table_query.finished


def test_a_table_that_rests_stays_known_to_lag_tools() -> None:
    """Kafka forgets the positions of a group without members after a week."""
    group = Group()
    table_query = query(Query, group)
    for hour in range(49):
        for second in range(2):
            table_query.turn(hour * 3600.0 + second, may_start=True)
    assert group.forgotten == 49


def test_a_damaged_checkpoint_is_rechecked_and_never_waited_for() -> None:
    """A person may mend it under the running job; one that shall end by itself gives it up."""
    attempts: list[Any] = [Damaged("offsets/1 is empty: reset it"), Query()]

    def launch() -> Any:
        found = attempts.pop(0)
        if isinstance(found, Damaged):
            raise found
        return found

    table_query = query(launch)
    table_query.turn(0.0, may_start=True)
    assert (table_query.progress.state, table_query.has_failed) == (JobState.FAILED, True)
    assert table_query.progress.reason == "offsets/1 is empty: reset it"
    table_query.turn(2.0, may_start=True)
    assert (table_query.progress.state, table_query.has_failed) == (JobState.RUNNING, False)


def test_a_config_error_ends_a_table_only_at_its_first_start() -> None:
    """Later the file was right already, and what changed may change back."""
    attempts: list[Any] = [ConfigError("no"), Query(), ConfigError("no")]

    def launch() -> Any:
        found = attempts.pop(0)
        if isinstance(found, ConfigError):
            raise found
        return found

    refused = query(launch)
    for second in range(100):
        refused.turn(float(second), may_start=True)
    assert (refused.misconfigured, refused.has_failed, len(attempts)) == (True, True, 2)
    assert (refused.progress.state, refused.progress.reason) == (JobState.FAILED, "no")
    table_query = query(launch)
    table_query.turn(0.0, may_start=True)
    table_query._query.isActive = False  # type: ignore[union-attr]
    table_query._query.error = OSError("gone")  # type: ignore[union-attr]
    table_query.turn(1.0, may_start=True)
    table_query.turn(9.0, may_start=True)
    assert (table_query.progress.state, table_query.progress.reason) == (JobState.RESTARTING, "no")
    assert not table_query.misconfigured


TABLE = TableSettings(name="t", path="/data/t")


def launcher(state_dir: Path, monkeypatch: pytest.MonkeyPatch, mark: CommitMark) -> Launcher:
    """Launches queries that a test can report for, of a table whose last commit has `mark`."""
    fence = SimpleNamespace(take=lambda _owner: mark, taken=True, writer="orders/t", epoch=1)
    rows = SimpleNamespace(schema=None, stream=None, shape=None, counts_again=False)
    monkeypatch.setattr(launch, "fence_of", lambda *_: fence)
    monkeypatch.setattr(launch, "keeps_state", lambda _stream: False)
    monkeypatch.setattr(launch, "prepare_table", lambda *_, **__: None)
    monkeypatch.setattr(launch, "start_query", lambda *_: Query())
    monkeypatch.setattr(Launcher, "_rows", lambda *_: rows)
    config = Config(
        name="orders",
        handler="m:f",
        state_dir=state_dir,
        source=SourceSettings(topics=["orders"]),
        kafka=KafkaSettings(common={"bootstrap.servers": "127.0.0.1:9092"}),
        spark=SparkSettings(tables=[TABLE]),
        file=Path("/etc/kworker.toml"),
    )
    assert config.spark
    limits = BatchLimits(config.spark, state_dir, lambda _: None)
    watch: Any = SimpleNamespace(topic_id="id-1", ends={0: 1000}, begins=dict)
    return Launcher(cast(Any, None), config, watch, AVAILABLE_NOW, limits)


@pytest.mark.parametrize(
    ("mark", "known", "following"),
    [
        (CommitMark("orders/t", 2, "other", 7, "id-1", {0: 900}, 1), None, 0),
        (CommitMark("orders/t", 1, "mine", 50_000, "id-1", {0: 500}, 1), 50_000, 50_001),
    ],
)
def test_a_taken_over_table_counts_the_batches_of_its_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mark: CommitMark,
    known: int | None,
    following: int,
) -> None:
    """After another host has led, a new one begins: its batches are not those of before."""
    folder = LocalFolder(tmp_path / "c" / "t")
    folder.write("metadata", b'{"id":"mine"}')
    for batch, end in ((49_999, 490), (50_000, 500)):
        ends = json.dumps({"orders.results": {"0": end}})
        folder.write(f"offsets/{batch}", f"v1\n{{}}\n{ends}".encode())
        folder.write(f"commits/{batch}", b"v1\n{}")
    progress, group = TableProgress("t", batch=50_000, positions={0: 500}), Group()
    start = launcher(tmp_path, monkeypatch, mark).launch
    started = partial(start, Sink(TABLE, 0, str(folder)), progress)
    table_query = TableQuery(
        progress, started, "; ".join, cast(Any, group), lambda: False, lambda: ""
    )
    table_query.turn(0.0, may_start=True)
    assert (progress.state, progress.batch) == (JobState.RUNNING, known)
    begin = mark.positions[0]
    running: Any = table_query._query
    running.report(told_batch(following, begin, begin + 10, rows=8))
    table_query.turn(1.0, may_start=True)
    assert (progress.batch, progress.rows, progress.behind({0: 1000})) == (
        following,
        8,
        990 - begin,
    )
    assert group.positions == {0: begin + 10}


def test_a_lease_has_one_holder_who_is_known(tmp_path: Path) -> None:
    """Two jobs on one checkpoint would corrupt it."""
    first, second = Lease(str(tmp_path / "c")), Lease(f"file://{tmp_path}/c")
    assert first.take()
    assert first.take()
    assert not second.take()
    assert second.holder() == (os.getpid(), socket.gethostname(), None)
    assert str(second.holder()) == f"process {os.getpid()} on {socket.gethostname()}"
    assert Lease("s3a://bucket/c").take()


def test_a_lease_lasts_as_long_as_the_child_that_writes(tmp_path: Path) -> None:
    """A JVM ends a moment after the process that started it was killed, and writes meanwhile."""
    mine, successors = Lease(str(tmp_path)), Lease(str(tmp_path))
    assert mine.descriptors == ()
    assert mine.take()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=mine.descriptors) as child:
        mine.release()
        assert not successors.take()
        child.communicate()
    assert successors.take()


@pytest.mark.parametrize("known", [True, False])
def test_the_jvm_of_a_dead_job_is_named_as_the_lease_holder(tmp_path: Path, known: bool) -> None:
    """One that hangs keeps its successors waiting, and somebody may have to kill it."""
    share = "lease.share(jvm.pid)" if known else ""
    script = f"""
import subprocess
import sys
from kworker.spark.checkpoints.lease import Lease
lease = Lease({str(tmp_path)!r})
assert lease.take()
quiet = subprocess.DEVNULL
jvm = subprocess.Popen(["cat"], stdout=quiet, stderr=quiet, pass_fds=lease.descriptors)
{share}
print(jvm.pid)
"""
    command = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as job:  # type: ignore[call-overload]
        jvm = int(job.stdout.readline())
        assert job.wait(30) == 0
        successors = Lease(str(tmp_path))
        assert not successors.take()
        who = f"process {jvm} on" if known else f"the JVM of process {job.pid} on"
        assert str(successors.holder()).startswith(f"{who} {socket.gethostname()}, ")
        assert " gone," in str(successors.holder())


def test_a_child_of_another_than_its_supervisor_ends_at_once() -> None:
    """The supervisor may have died before the child could ask to be told."""
    assert end_with_parent({})
    environment = {"KWORKER_PARENT_PID": str(os.getpid()), "OTHER": ""}
    assert not end_with_parent(environment)
    assert environment == {"OTHER": ""}


def test_a_wait_ends_when_the_request_comes() -> None:
    """A handler only records; the main thread is the one that acts."""
    stop = StopRequest()
    assert not stop.wait(0.0)
    stop._record(15, None)
    assert stop.wait(60.0)


def test_a_progress_entry_is_plain_json() -> None:
    """Other programs read it."""
    entry = summary(TableProgress("t", JobState.RUNNING, batch=4), {0: 3})
    assert json.loads(json.dumps(entry)) == entry
    assert (entry["batch"], entry["behind"], entry["state"]) == (4, 3, "running")


def test_a_progress_file_that_cannot_be_written_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk passes; the table's own writes say what they make of it."""
    file = ProgressFile(tmp_path)
    (tmp_path / "spark" / "progress.json").mkdir()
    for _ in range(2):
        file.write(JobState.RUNNING, "", [])
    assert capsys.readouterr().out.count("cannot write its progress file") == 1


def test_a_job_that_is_gone_without_a_word_has_stopped(tmp_path: Path) -> None:
    """Its last word would read as if it still ran."""
    assert read_progress(tmp_path) is None
    ProgressFile(tmp_path).write(JobState.RUNNING, "", [])
    told = read_progress(tmp_path)
    assert told is not None
    assert (told["state"], told["pid"]) == ("running", os.getpid())
    progress_path(tmp_path).write_text(json.dumps({**told, "pid": 2**22 + 1}))
    told = read_progress(tmp_path)
    assert told is not None
    assert (told["state"], told["reason"]) == ("stopped", f"process {2**22 + 1} is gone")
