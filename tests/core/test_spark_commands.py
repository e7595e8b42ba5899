"""What `kworker spark reset` and `compact` refuse before they ask a broker or start a JVM."""

from pathlib import Path

import pytest

from kworker.cli import spark_reset
from kworker.cli.main import run
from kworker.errors import ExitCode
from kworker.spark.lease import Lease

TABLES = {
    "orders": "",
    "merged": "dedupe = true",
    "whole": 'mode = "complete"',
    "files": 'format = "parquet"',
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration with a table of each kind; nothing listens where its brokers are."""
    path = tmp_path / "kworker.toml"
    path.write_text(
        'name = "orders"\nhandler = "m:f"\nstate_dir = "state"\n[source]\ntopics = ["in"]\n'
        '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[spark]\ncheckpoints = "data/c"\n'
        + "".join(
            f'[[spark.tables]]\nname = "{name}"\npath = "data/{name}"\n{more}\n'
            for name, more in TABLES.items()
        )
    )
    return path


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
    assert told == "kworker: --table: say which one: orders, merged, whole, files\n"
    told = said(file, capsys, ExitCode.USAGE, "reset", *where, "--table", "order")
    assert told == "kworker: --table order: expected one of orders, merged, whole, files\n"


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


def test_parquet_and_distant_checkpoints_are_refused_with_what_to_do(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first would skip batches in silence; the second cannot be moved from here."""
    log = file.parent / "data" / "files" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "0").touch()
    reset = ("reset", "--from", "earliest", "--table")
    told = said(file, capsys, ExitCode.FAILURE, *reset, "files")
    assert "give it another path first" in told
    file.write_text(file.read_text().replace('"data/c"', '"s3a://bucket/c"'))
    told = said(file, capsys, ExitCode.FAILURE, *reset, "orders")
    assert "move s3a://bucket/c/orders away" in told


def test_a_table_that_cannot_be_compacted_says_why(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Merged tables only while no job runs: a merge and a compaction would undo each other."""
    compact = ("compact", "--table")
    told = said(file, capsys, ExitCode.FAILURE, *compact, "files")
    assert told.startswith("kworker: table files: Parquet has no transaction")
    told = said(file, capsys, ExitCode.FAILURE, *compact, "whole")
    assert told.startswith("kworker: table whole: each batch writes it anew")
    lease = Lease(str(file.parent / "data" / "c"))
    assert lease.take()
    told = said(file, capsys, ExitCode.ALREADY_RUNNING, *compact, "merged")
    assert told.startswith("kworker: table merged is merged into: the Spark job runs as process ")


def test_the_lease_is_free_again_after_the_command(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that failed must not keep the job waiting."""
    monkeypatch.setattr(spark_reset, "TIMEOUT_S", 0.2)
    said(file, capsys, ExitCode.UNREACHABLE, "reset", "--from", "latest", "--table", "orders")
    assert Lease(str(file.parent / "data" / "c")).take()
