"""A table's transform that raises: waited for if that may pass, refused if it is a mistake."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException, ParseException

from kworker.config.model import Config, KafkaSettings, SourceSettings, SparkSettings
from kworker.errors import ConfigError
from kworker.spark import launch, plan
from kworker.spark.launch import Launcher
from kworker.spark.plan import Planner
from kworker.spark.progress import JobState, TableProgress
from kworker.spark.query import TableQuery
from kworker.spark.rows import frames
from kworker.spark.rows.transforms import TransformRaised, apply
from kworker.spark.tables.sinks import AVAILABLE_NOW, Sink

MODULE = "enriching"
TRANSFORM = """
def enrich(rows):
    raise ConnectionError("prices:5432 refused")


def nothing(rows):
    return None
"""


def refused_by_spark(text: str, cause: Exception | None = None) -> AnalysisException:
    """As pyspark makes it of a Java exception, whose cause it keeps."""
    error = AnalysisException(text)
    error._cause = cause  # type: ignore[attr-defined]
    return error


def calls(error: Exception) -> None:
    def transform(_rows: object) -> object:
        raise error

    apply(transform, "m:f", cast(Any, None))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("prices:5432 refused"),
        refused_by_spark("[FAILED_JDBC.LOAD_TABLE] Failed JDBC", ConnectionError("refused")),
        refused_by_spark("[PATH_NOT_FOUND] Path does not exist: file:/mnt/prices."),
        refused_by_spark("[UNABLE_TO_INFER_SCHEMA] Unable to infer schema for Parquet."),
        refused_by_spark("[DELTA_PATH_DOES_NOT_EXIST] s3a://b/prices doesn't exist"),
        refused_by_spark("[TABLE_OR_VIEW_NOT_FOUND] The table or view `prices` cannot be found."),
    ],
)
def test_an_error_of_what_a_transform_reads_may_pass(error: Exception) -> None:
    """The disk of a missing path may be mounted later, or another job may be writing it anew."""
    with pytest.raises(TransformRaised, match=r"^m:f raised an error that may pass: "):
        calls(error)


@pytest.mark.parametrize(
    "error",
    [
        refused_by_spark("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column cannot be resolved."),
        refused_by_spark("[FIELD_NOT_FOUND] No such struct field."),
        ParseException("[PARSE_SYNTAX_ERROR] Syntax error at or near 'end'."),
    ],
)
def test_what_spark_cannot_resolve_is_a_mistake(error: Exception) -> None:
    """Waiting does not help, and a job without another table shall end."""
    with pytest.raises(ValueError, match=r"^m:f raised \["):
        calls(error)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """A service with a table for each function of MODULE; nothing is read from Kafka."""
    (tmp_path / f"{MODULE}.py").write_text(TRANSFORM)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for room in (plan, launch):
        monkeypatch.setattr(room, "results", lambda *_: None)
    monkeypatch.setattr(frames, "rows_of", lambda *_: None)
    tables = [
        {"name": name, "path": f"/data/{name}", "transform": f"{MODULE}:{name}"}
        for name in ("enrich", "nothing", "missing")
    ]
    yield Config(
        name="orders",
        handler="m:f",
        state_dir=tmp_path,
        source=SourceSettings(topics=["orders"]),
        kafka=KafkaSettings(common={"bootstrap.servers": "127.0.0.1:9092"}),
        spark=SparkSettings.model_validate({"tables": tables}),
        file=tmp_path / "kworker.toml",
    )
    sys.modules.pop(MODULE, None)


class Starts:
    """Stands in for the launcher: some starts fail, the next one succeeds."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors

    def launch(self, _sink: Sink, _progress: TableProgress) -> object:
        if self.errors:
            raise self.errors.pop(0)
        return object()


def planned(config: Config, launcher: Starts) -> dict[str, TableQuery]:
    planner = Planner(cast(Any, None), config, *cast(Any, (None, launcher, None)), missing={})
    return {query.progress.name: query for query in planner.plan()}


def test_a_dependency_that_is_down_at_the_start_is_awaited(config: Config) -> None:
    """A host reboots while a database does: nobody shall have to start the job once more."""
    raised = "enriching:enrich raised an error that may pass: ConnectionError: refused"
    query = planned(config, Starts([TransformRaised(raised)] * 2))["enrich"]
    assert (query.misconfigured, query.progress.state) == (False, JobState.STARTING)
    query.turn(0.0, may_start=True)
    assert (query.misconfigured, query.has_failed) == (False, False)
    assert (query.progress.state, query.progress.reason) == (JobState.RESTARTING, raised)
    query.turn(1.5, may_start=True)
    query.turn(3.0, may_start=True)
    assert query.progress.state is JobState.RESTARTING, "the delay does not grow"
    query.turn(4.0, may_start=True)
    assert (query.progress.state, query.progress.reason) == (JobState.RUNNING, "")


@pytest.mark.parametrize(
    ("table", "why"),
    [("nothing", "returned NoneType, not a DataFrame"), ("missing", "has no function missing")],
)
def test_a_transform_that_cannot_be_used_is_refused(config: Config, table: str, why: str) -> None:
    query = planned(config, Starts([]))[table]
    assert (query.misconfigured, query.progress.state) == (True, JobState.FAILED)
    assert query.progress.reason.endswith(why)


def launched(config: Config, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts a query of the first table; `error` is what its preparation raises."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Launcher, "_launch", fail)
    assert config.spark
    launcher = Launcher(*cast(Any, (None, config, None, AVAILABLE_NOW, None)))
    sink = Sink(config.spark.tables[0], 0, str(config.state_dir / "checkpoint"))
    launcher.launch(sink, TableProgress("enrich"))


def test_a_catalog_that_is_down_at_the_start_is_awaited(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark then says that the statement cannot be analysed, as of one that is wrong."""
    down = refused_by_spark("[FAILED_JDBC.CREATE_TABLE] Failed", ConnectionError("refused"))
    with pytest.raises(AnalysisException, match="FAILED_JDBC"):
        launched(config, down, monkeypatch)
    with pytest.raises(ConfigError, match=r"spark.tables\[enrich\]: \[INVALID"):
        launched(config, refused_by_spark("[INVALID_PARTITION] no"), monkeypatch)
