"""What `kworker spark reset` and `compact` refuse before they ask a broker or start a JVM."""

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from kworker.cli.main import run
from kworker.cli.spark import access, reset_table
from kworker.cli.spark.reset_table import CheckpointReset
from kworker.clients import roster
from kworker.clock import now_ms
from kworker.config import toml_file
from kworker.config.model import TableSettings
from kworker.config.topics import TopicInfo
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.errors import ExitCode, Unreachable
from kworker.spark.checkpoints.commit_marks import CommitMark
from kworker.spark.checkpoints.folders import LocalFolder
from kworker.spark.checkpoints.guard import Guard, ResultsTopic, takes_one_writer
from kworker.spark.checkpoints.lease import Lease
from kworker.spark.checkpoints.note import Note, read_note, write_note
from tests.support.tables import spark_config, spark_table

TABLES = (
    spark_table("orders")
    + spark_table("merged", dedupe=True)
    + spark_table("whole", mode="complete")
    + spark_table("files", format="parquet")
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration with a table of each kind; nothing listens where its brokers are."""
    path = tmp_path / "kworker.toml"
    path.write_text(spark_config("orders", f'[spark]\ncheckpoints = "data/c"\n{TABLES}'))
    return path


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[str] | None]:
    """The members of the group of jobs, as they are told; the last for ever, and else none."""
    told: list[frozenset[str] | None] = []

    def members(_properties: object, _group: str) -> frozenset[str] | None:
        return told.pop(0) if len(told) > 1 else next(iter(told), frozenset())

    monkeypatch.setattr(roster, "members", members)
    monkeypatch.setattr(access, "POLL_S", 0.01)
    return told


def said(
    file: Path, capsys: pytest.CaptureFixture[str], code: ExitCode, verb: str, *more: str
) -> str:
    assert run(["spark", verb, *more, "--config", str(file)]) == code
    return capsys.readouterr().err


def test_a_reset_is_of_one_table_that_is_there(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A guess would begin the wrong one anew."""
    where = ("--from", "committed")
    told = said(file, capsys, ExitCode.USAGE, "reset", *where)
    assert told == (
        "kworker: --table is required, since there are several tables: orders, merged, whole,"
        " files\n"
    )
    told = said(file, capsys, ExitCode.USAGE, "reset", *where, "--table", "order")
    assert told == (
        "kworker: --table order: no such table; expected one of orders, merged, whole, files\n"
    )


def test_nothing_is_reset_under_a_running_job(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would go on in the old folder, under its new name."""
    lease = Lease(str(file.parent / "data" / "c"))
    assert lease.take()
    told = said(
        file, capsys, ExitCode.ALREADY_RUNNING, "reset", "--from", "earliest", "--table", "orders"
    )
    assert told.startswith("kworker: the Spark job runs as process ")
    assert "kworker stop" in told


class Brokers:
    """One partition of results, 20 to 500, and a group that was told of 300."""

    def __init__(
        self, topic_id: str = "id-1", held: range = range(20, 500), *, refuses: bool = False
    ) -> None:
        self.moved: dict[PartitionId, int] = {}
        self._topic_id = topic_id
        self._held = held
        self._refuses = refuses

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return dict.fromkeys(names, TopicInfo(1, 1, {}))

    def topic_id(self, _name: str) -> str:
        return self._topic_id

    def group_offsets(
        self, _group: str, at: Collection[PartitionId]
    ) -> dict[PartitionId, Committed]:
        return dict.fromkeys(at, Committed(300))

    def list_offsets(
        self, at: Collection[PartitionId], goal: str, *, committed: bool = False
    ) -> dict[PartitionId, int]:
        assert committed == (goal == "latest")
        return dict.fromkeys(at, self._held.start if goal == "earliest" else self._held.stop)

    def set_group_offsets(self, _group: str, positions: dict[PartitionId, int]) -> None:
        if self._refuses:
            raise Unreachable("no broker answers")
        self.moved = positions


def beginning(file: Path, brokers: Any) -> CheckpointReset:
    """A reset of a table whose checkpoint is of the topic with the id `id-1`."""
    config = toml_file.load(str(file))
    assert config.spark
    folder = LocalFolder(file.parent / "data" / "c" / "orders")
    write_note(folder, Note("orders.results", "id-1", merged=False))
    return CheckpointReset(config, config.spark.tables[0], folder, brokers)


def test_a_reset_that_the_brokers_refuse_changes_nothing(file: Path) -> None:
    """Half of one, and the job would refuse to start, or begin where nobody said."""
    begin = beginning(file, Brokers(refuses=True))
    before = read_note(begin.folder)
    with pytest.raises(Unreachable):
        begin.perform("latest", dry_run=False, as_json=False)
    assert read_note(begin.folder) == before
    assert Guard(begin.table, begin.folder).admit(ResultsTopic("orders.results", "id-1"), {})


@pytest.mark.parametrize(
    ("topic_id", "start", "known"),
    [
        ("id-1", 300, True),
        # What the group was told of is of the one before, and would hide as much of this one.
        ("id-2", 20, False),
    ],
)
def test_a_reset_ignores_positions_of_a_recreated_topic(
    file: Path, capsys: pytest.CaptureFixture[str], topic_id: str, start: int, known: bool
) -> None:
    """Where the table stands is told by its checkpoint and its group, if they are of this one."""
    (file.parent / "data" / "orders" / "a-file").mkdir(parents=True)
    brokers = Brokers(topic_id)
    begin = beginning(file, brokers)
    begin.perform("committed", dry_run=False, as_json=False)
    assert brokers.moved == {("orders.results", 0): start}
    # Without a time: where the table tells how far it is, that holds.
    assert read_note(begin.folder) == Note("orders.results", topic_id, False, {0: start})
    told = "it is not known how far the table had come" in capsys.readouterr().out
    assert told is not known


@pytest.mark.parametrize(
    ("held", "mark", "start"),
    [
        (range(400, 500), 300, 400),  # expired
        (range(400, 500), 310, 400),  # the group was not told of the last batch
        (range(400, 500), 450, 450),  # nor of another host's batches
        (range(20, 250), 300, 250),  # an unclean election
        (range(20, 250), 240, 240),
        (range(20, 500), 450, 450),
    ],
)
def test_a_reset_from_committed_gets_past_missing_results(
    file: Path, capsys: pytest.CaptureFixture[str], held: range, mark: int, start: int
) -> None:
    """The job asks for this command then; a job that went back would ask for it for ever."""
    begin = beginning(file, Brokers(held=held))
    begin.perform("committed", dry_run=False, as_json=False)
    capsys.readouterr()
    last_mark = CommitMark("orders/orders", 1, "q", 7, "id-1", {0: mark}, at_ms=1)
    for _ in range(2):  # the job may end before its first batch
        guard = Guard(begin.table, begin.folder)
        found = guard.admit(ResultsTopic("orders.results", "id-1"), {}, last_mark)
        assert (found.checkpoint, found.start) == (None, {0: start})
    told = "another job has written to the table" in capsys.readouterr().out
    assert told is (start == mark)


def test_a_batch_after_the_reset_tells_where_to_go_on(file: Path) -> None:
    """Another host's job may have written it: its results would come again."""
    begin = beginning(file, Brokers(held=range(20, 250)))
    begin.perform("committed", dry_run=False, as_json=False)
    last_mark = CommitMark("orders/orders", 1, "q", 7, "id-1", {0: 290}, now_ms() + 1)
    guard = Guard(begin.table, begin.folder)
    assert guard.admit(ResultsTopic("orders.results", "id-1"), {}, last_mark).start == {0: 290}


def test_a_reset_from_committed_finishes_one_that_was_cut_off(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left of the old checkpoint may be half of it, or of a topic that is gone."""
    begin = beginning(file, Brokers())
    batch = 'v1\n{}\n{"orders.results":{"0":480}}'
    for name, text in (("offsets/0", batch), ("commits/0", "v1\n{}"), ("metadata", '{"id":"q"}')):
        begin.folder.write(name, text.encode())
    draft = begin.folder.beside(".orders.new")
    write_note(draft, Note("orders.results", "id-1", False, {0: 300}))
    draft.write("moving", b"")
    begin.perform("committed", dry_run=False, as_json=False)
    assert read_note(begin.folder) == Note("orders.results", "id-1", False, {0: 300})
    assert not draft.exists()
    kept = f"orders: the old checkpoint is kept as {begin.folder}.2"
    assert kept in capsys.readouterr().out


def test_a_reset_of_distant_checkpoints_says_what_it_waits_for(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM, whose absence is told like anywhere else."""
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("JAVA_HOME", str(file.parent))
    file.write_text(file.read_text().replace('"data/c"', '"s3a://bucket/c"'))
    told = said(file, capsys, ExitCode.CONFIG, "reset", "--from", "earliest", "--table", "orders")
    assert told.splitlines() == [
        "kworker: starting Spark to reach s3a://bucket/c/orders; this takes some seconds",
        f"kworker: JAVA_HOME is {file.parent}, which has no bin/java: correct or unset it",
    ]


def test_a_reset_of_local_checkpoints_loads_no_spark(file: Path) -> None:
    """It takes a second to import, and need not be installed where only workers run."""
    arguments = ["spark", "reset", "--from", "latest", "--table", "orders", "--dry-run"]
    loaded = (
        "import sys; from kworker.cli.spark import reset_table; from kworker.cli.main import run;"
        f"reset_table.TIMEOUT_S = 0.2; print(run({[*arguments, '--config', str(file)]}),"
        "{'pyspark', 'py4j'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True)
    assert done.stdout == f"{ExitCode.UNREACHABLE.value} set()\n"


def test_a_table_that_cannot_be_compacted_says_why(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a local folder only while no job runs: of two commits at once, one would be gone."""
    compact = ("compact", "--table")
    told = said(file, capsys, ExitCode.FAILURE, *compact, "files")
    assert told.startswith("kworker: table files: Parquet has no transaction")
    told = said(file, capsys, ExitCode.FAILURE, *compact, "whole")
    assert told.startswith("kworker: table whole: each batch writes it anew")
    lease = Lease(str(file.parent / "data" / "c"))
    assert lease.take()
    for table in ("orders", "merged"):
        told = said(file, capsys, ExitCode.ALREADY_RUNNING, *compact, table)
        assert told.startswith(
            f"kworker: table {table} allows one writer only: the Spark job runs as "
        )


@pytest.mark.parametrize(
    ("settings", "one"),
    [
        ({"path": "data/orders"}, True),
        ({"path": "file:///data/orders"}, True),
        ({"path": "s3a://bucket/orders"}, True),
        ({"path": "hdfs://name/orders"}, False),
        ({"table": "lake.shop.orders"}, False),
        ({"table": "lake.shop.orders", "dedupe": True}, True),
    ],
)
def test_the_tables_path_decides_who_may_write_beside_the_job(
    settings: dict[str, Any], one: bool
) -> None:
    """Where a commit does not exclude another, a batch could be lost without a word."""
    assert takes_one_writer(TableSettings.model_validate({"name": "orders", **settings})) is one


def test_a_job_on_another_host_is_seen(
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[frozenset[str] | None],
) -> None:
    """Its checkpoints are its own, and the table is not; one that was killed is gone by itself."""
    reset = ("reset", "--from", "committed", "--table", "orders")
    jobs[:] = [None]
    assert "it is not known whether" in said(file, capsys, ExitCode.FAILURE, *reset)
    jobs[:] = [frozenset({"orders-web2-spark.1"})]
    monkeypatch.setattr(access, "GONE_S", -10.0)
    told = said(file, capsys, ExitCode.ALREADY_RUNNING, *reset)
    assert "runs on another host, as orders-web2-spark.1 of group orders.spark:" in told
    monkeypatch.setattr(access, "GONE_S", 10.0)
    monkeypatch.setattr(reset_table, "TIMEOUT_S", 0.2)
    jobs[:] = [frozenset({"orders-web2-spark.1"}), frozenset()]
    said(file, capsys, ExitCode.UNREACHABLE, *reset)


def test_the_lease_is_free_again_after_the_command(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that failed must not keep the job waiting."""
    monkeypatch.setattr(reset_table, "TIMEOUT_S", 0.2)
    said(file, capsys, ExitCode.UNREACHABLE, "reset", "--from", "latest", "--table", "orders")
    assert Lease(str(file.parent / "data" / "c")).take()
