"""What a table's place and its query's state may look like at a start, on a real Spark.

No broker, and one JVM for all formats, since starting it is most of what this costs.
"""

import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from kworker.config import toml_file
from kworker.config.model import Config
from kworker.spark.query import causes
from kworker.spark.reasons import explained
from kworker.spark.rows.columns import Repartitioned
from kworker.spark.session.archives import archives
from kworker.spark.session.session import close_session, open_session
from kworker.spark.tables.sinks import AVAILABLE_NOW, Sink, prepare_table, sinks, start_query
from tests.support.tables import spark_config, spark_table
from tests.support.waiting import eventually

FORMATS = ("delta", "iceberg", "parquet")
ROWS = "order_id BIGINT, total DOUBLE, customer STRING"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A table of each format, parted by customer."""
    file = tmp_path_factory.mktemp("columns") / "kworker.toml"
    parted = {"partition_by": ["customer"], "schema": "customer STRING"}
    tables = [spark_table(each, format=each, **parted) for each in FORMATS]
    tables.append(spark_table("sums", mode="complete"))
    file.write_text(spark_config("columns", "".join(tables)))
    (file.parent / "state" / "spark").mkdir(parents=True)
    return toml_file.load(str(file))


@pytest.fixture(scope="module")
def session(config: Config) -> Iterator[SparkSession]:
    """The second of this process, whose environment it changes meanwhile."""
    assert config.spark
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"):
            patch.setenv(name, os.environ.get(name, ""))
        patch.delenv("PYSPARK_PYTHON")
        close_session(open_session(config, []), config)
        made = open_session(config, archives(config.spark.tables, progress=print))
        yield made
        close_session(made, config)


@pytest.fixture(scope="module", params=FORMATS)
def sink(request: pytest.FixtureRequest, config: Config, session: SparkSession) -> Sink:
    """Of a table that is there, and has a row."""
    assert config.spark
    [found] = [each for each in sinks(config.spark) if each.table.name == request.param]
    prepare_table(session, found, StructType.fromDDL(ROWS), wrote=False)
    row = session.createDataFrame([(1, 0.5, "7")], ROWS)  # a number, for who guesses
    if request.param == "parquet":
        row.write.partitionBy("customer").parquet(found.table.path)
    else:
        row.writeTo(found.name).append()
    return found


def test_a_table_with_matching_columns_is_unchanged(session: SparkSession, sink: Sink) -> None:
    """At each start but the first."""
    prepare_table(session, sink, StructType.fromDDL(ROWS), wrote=True)


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        (
            "order_id STRING, total DOUBLE, customer STRING",
            "column order_id is bigint in the table, but string in the rows",
        ),
        (
            "order_id BIGINT, customer STRING",
            "the table has a column total, but the rows do not",
        ),
    ],
)
def test_columns_that_change_or_go_are_refused(
    session: SparkSession, sink: Sink, ddl: str, why: str
) -> None:
    """Also where files would take anything, and nobody could read them together."""
    with pytest.raises(ValueError, match=why):
        prepare_table(session, sink, StructType.fromDDL(ddl), wrote=True)


@pytest.mark.parametrize("by", [[], ["order_id"], ["customer", "order_id"]])
def test_other_partition_columns_are_refused(
    session: SparkSession, sink: Sink, by: list[str]
) -> None:
    """Files in two layouts under one folder cannot be read together.

    Delta's table says itself how it is partitioned to who does not; Iceberg's always does.
    """
    table = sink.table.model_copy(update={"partition_by": by})
    rows, changed = StructType.fromDDL(ROWS), replace(sink, table=table)
    refuses = {"parquet": True, "delta": bool(by), "iceberg": False}[table.format]
    told = f"^the table is partitioned by customer, but partition_by is {', '.join(by) or 'empty'}$"
    with pytest.raises(Repartitioned, match=told) if refuses else nullcontext():
        prepare_table(session, changed, rows, wrote=True)


def test_a_column_that_is_added_stands_where_the_schema_has_it(
    session: SparkSession, sink: Sink
) -> None:
    """Files have it from then on; those who read them merge their schemas."""
    more = StructType.fromDDL("order_id BIGINT, city STRING, total DOUBLE, customer STRING")
    prepare_table(session, sink, more, wrote=True)
    if sink.table.format != "parquet":
        assert session.table(sink.name).columns == more.names


def test_a_truncated_state_is_refused_by_name_with_what_to_type(
    config: Config, session: SparkSession
) -> None:
    """Only Spark can tell that the state of a query is damaged."""
    assert config.spark
    [sink] = [each for each in sinks(config.spark) if each.table.name == "sums"]
    numbers = config.file.parent / "numbers"
    numbers.mkdir()
    sums = session.readStream.schema("n BIGINT").json(str(numbers)).groupBy("n").count()
    prepare_table(session, sink, sums.schema, wrote=False)

    def run(name: str) -> StreamingQuery:
        (numbers / name).write_text('{"n": 7}\n')
        query = start_query(sums, sink, AVAILABLE_NOW, lambda rows, _batch: rows.collect())
        eventually(lambda: not query.isActive, timeout_s=60, what="it has read everything")
        return query

    assert run("1.json").exception() is None
    for file in Path(sink.checkpoint).glob("state/*/*/*.delta"):
        file.write_bytes(file.read_bytes()[:5])
    query = run("2.json")
    why = explained(sink.table, sink.checkpoint, [str(query.exception()), *causes(query)])
    assert re.search(r"; .*data/_checkpoints/sums/state/0/\d/1\.delta does not match", why)
    assert why.endswith("stop the job, then kworker spark reset --table sums --from earliest")
