"""The Spark job's decisions, all made without a JVM."""

import json
import os
import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType

from kworker.config import Config, Kafka, Source, Spark, Table
from kworker.errors import ConfigError
from kworker.spark.kafka_options import client_properties, source_options
from kworker.spark.lease import Lease
from kworker.spark.progress import State, TableProgress, job_state, summary
from kworker.spark.query import TableQuery
from kworker.spark.reasons import shortened
from kworker.spark.session import missing_from, properties, properties_text
from kworker.spark.sinks import Sink, missing_columns, trigger_of
from kworker.spark.stop import StopRequest, end_with_parent
from kworker.spark.tables import (
    SOURCE_COLUMNS,
    added_columns,
    identifier,
    literal,
    merge_statement,
    misfit_column,
    parsed_columns,
    wanted,
)


def columns(**types: str) -> StructType:
    """A schema, from names and Spark's names of types."""
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in types.items()
    ]
    return StructType.fromJson({"fields": fields})


def table(**settings: Any) -> Table:
    return Table.model_validate({"name": "t", "path": "/data/t", **settings})


def config(*tables: Table, state_dir: Path = Path("/run/x"), **spark: Any) -> Config:
    return Config(
        name="orders",
        handler="m:f",
        state_dir=state_dir,
        source=Source(topics=["orders"]),
        kafka=Kafka(common={"bootstrap.servers": "127.0.0.1:9092"}),
        spark=Spark.model_validate({"tables": list(tables) or [table()], **spark}),
        file=Path("/etc/kworker.toml"),
    )


def test_sasl_credentials_become_a_login_module_whatever_is_in_them() -> None:
    """A quote in a password must not end it: it would be a syntax error, or another option."""
    found = client_properties(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'a"b\\c',
            "ssl.ca.location": "/ca.pem",
        }
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="me" password="a\\"b\\\\c";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }


def test_a_clients_certificate_is_handed_over_as_text(tmp_path: Path) -> None:
    """Java wants certificate and key in one file; as text they may stay apart."""
    (tmp_path / "cert").write_text("CERT")
    (tmp_path / "key").write_text("KEY")
    found = client_properties(
        {"ssl.certificate.location": f"{tmp_path}/cert", "ssl.key.location": f"{tmp_path}/key"}
    )
    assert found["ssl.keystore.certificate.chain"] == "CERT"
    assert found["ssl.keystore.key"] == "KEY"
    with pytest.raises(ConfigError, match=r"kafka\.ssl\.certificate\.location: cannot read"):
        client_properties({"ssl.certificate.location": f"{tmp_path}/none"})


def test_a_mechanism_without_a_counterpart_is_a_configuration_error() -> None:
    """Spark would fail late and at length."""
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.mechanism: .* not GSSAPI"):
        client_properties({"sasl.mechanism": "GSSAPI"})


def test_the_stream_reads_only_what_is_committed_and_never_skips_a_gap() -> None:
    """P2 rests on the first, P1 on the second; librdkafka's own tuning means nothing to Java."""
    options = source_options({"bootstrap.servers": "b:1", "linger.ms": 5}, "orders.results")
    assert options == {
        "subscribe": "orders.results",
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "kafka.bootstrap.servers": "b:1",
        "kafka.isolation.level": "read_committed",
    }


def test_names_and_texts_are_quoted_for_sql() -> None:
    """They come from a file, and a column may be called anything."""
    assert identifier("a`b") == "`a``b`"
    assert literal("it's\\") == "'it\\'s\\\\'"
    assert wanted(table(select="it's", replays=True)) == "routed = 'it\\'s'"
    assert wanted(table()) == "routed IS NULL AND NOT replayed"


def test_the_parsers_own_column_has_a_name_of_its_own() -> None:
    """A column of that name in the schema would be overwritten."""
    assert misfit_column(columns(a="long")) == "_misfit"
    assert misfit_column(columns(_MISFIT="long", _misfit_="long")) == "_misfit__"


def test_a_column_added_to_the_schema_is_added_where_it_stands() -> None:
    """So a table that grew looks like one that was made so."""
    have = columns(a="long", b="string")
    want = columns(first="long", A="long", new="double", b="string")
    added = [(column.field.name, column.after) for column in added_columns(have, want)]
    assert added == [("first", None), ("new", "A")]


@pytest.mark.parametrize(
    ("want", "why"),
    [
        (columns(a="string"), "column a is bigint in the table, and string here"),
        (columns(b="long"), "the table has a column a, which is not there any more"),
    ],
)
def test_any_other_change_of_columns_is_refused(want: StructType, why: str) -> None:
    """The table's old rows could not be read as the new ones."""
    with pytest.raises(ValueError, match=why):
        added_columns(columns(a="long"), want)


def test_icebergs_wider_numbers_are_no_change() -> None:
    """It has no type for a SMALLINT, so its table never looks like the schema."""
    assert added_columns(columns(a="integer"), columns(a="short")) == []


def test_a_merge_takes_nulls_for_equal() -> None:
    """A record without a timestamp would otherwise be inserted at each repetition."""
    statement = merge_statement("t", "v", ["a", "b"], ["a"], update=False)
    assert statement == (
        "MERGE INTO t t USING v r ON t.`a` <=> r.`a`"
        " WHEN NOT MATCHED THEN INSERT (`a`, `b`) VALUES (r.`a`, r.`b`)"
    )
    assert "WHEN MATCHED THEN UPDATE SET *" in merge_statement("t", "v", ["a"], ["a"], update=True)


def test_dedupe_merges_on_the_source_and_update_on_what_it_is_told() -> None:
    """DESIGN 2."""
    assert Sink(table(dedupe=True), 0, "c").merge_keys == SOURCE_COLUMNS
    assert Sink(table(mode="update", merge_on=["a"]), 0, "c").merge_keys == ("a",)
    assert Sink(table(), 0, "c").merge_keys == ()


def test_a_column_that_the_rows_lack_is_named_with_its_key() -> None:
    """A transform may have dropped it, which the file alone cannot tell."""
    merged = table(mode="update", merge_on=["KEY", "minute"])
    assert missing_columns(merged, ["key"]) == [
        "merge_on: the rows have no column minute; they have key"
    ]
    assert missing_columns(table(dedupe=True), list(SOURCE_COLUMNS)) == []


def test_an_interval_is_told_in_milliseconds_and_once_reads_what_there_is() -> None:
    """Spark's own spelling of durations has no room for ours."""
    spark = config(trigger="1m").spark
    assert spark is not None
    assert trigger_of(spark, once=False) == "60000 milliseconds"
    assert trigger_of(spark, once=True) == "available-now"


def test_an_iceberg_table_by_path_gets_a_catalog_for_its_folder() -> None:
    """Only a catalog makes an Iceberg table; nobody wants to configure one for a folder."""
    told = properties(config(table(), table(format="iceberg", path="/data/ice")), [], Path("/f"))
    assert told["spark.sql.catalog.kworker_1.warehouse"] == "/data"
    assert Sink(table(format="iceberg", path="/data/ice"), 1, "c").name == "kworker_1.`ice`"
    assert told["spark.sql.extensions"].count(",") == 1


def test_what_the_user_says_goes_before_what_is_usual() -> None:
    """But for the extensions and Java options, where both are needed."""
    own = {
        "spark.driver.memory": "4g",
        "spark.sql.extensions": "mine",
        "spark.driver.extraJavaOptions": "-Dx=1",
        "spark.driver.extraClassPath": "/own.jar",
    }
    told = properties(config(conf=own), [Path("/a.jar")], Path("/f"))
    assert told["spark.driver.memory"] == "4g"
    assert told["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,mine"
    assert told["spark.driver.extraJavaOptions"].endswith(" -Dx=1")
    assert "log4j2.properties" in told["spark.driver.extraJavaOptions"]
    assert told["spark.driver.extraClassPath"] == "/a.jar:/own.jar"


def test_a_cluster_gets_the_archives_and_may_reach_the_driver() -> None:
    """Its executors have another machine's class path and loopback."""
    told = properties(config(master="spark://host:7077"), [Path("/a.jar")], Path("/f"))
    assert told["spark.jars"] == "/a.jar"
    assert "spark.driver.bindAddress" not in told


def test_properties_survive_javas_reader() -> None:
    """Secrets have any character in them."""
    text = properties_text({"a b": "p=1:#\\!\nx"})
    assert text == "a\\ b=p\\=1\\:\\#\\\\\\!\\nx\n"


def test_archives_that_pyspark_brings_are_left_out(tmp_path: Path) -> None:
    """Two versions of one library on a class path break at a distance."""
    (tmp_path / "scala-library-2.13.16.jar").touch()
    found = [Path("/x/scala-library-2.13.13.jar"), Path("/x/delta-spark_2.13-4.0.0.jar")]
    assert missing_from(tmp_path, found) == found[1:]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'b'. SQLSTATE: 42601 (line 1, pos 9)"
            "\n\n== SQL ==\na BIGINT b",
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'b'. (line 1, pos 9)",
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: java.io.IOException: full\n"
            "=== Streaming Query ===",
            "IOException: full",
        ),
        (
            'Traceback (most recent call last):\n  File "x", line 1\nmod.MyError: no\n\tat o.a',
            "MyError: no",
        ),
        ("x" * 1000, "x" * 300),
    ],
)
def test_an_exception_of_pages_becomes_a_line(text: str, line: str) -> None:
    """It stands in `status`, and after a key of the configuration."""
    assert shortened(text) == line


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
        progress.took(told)
    assert (progress.batch, progress.rows, progress.foreign) == (1, 13, 2)
    assert progress.behind({0: 20, 1: 5}) == 10


def test_an_idle_query_has_not_had_its_next_batch() -> None:
    """While idle it names the batch to come: taken for done, its rows would never be counted."""
    progress = TableProgress("t")
    assert not progress.took(told_batch(3, 10, 10))
    assert progress.took(told_batch(3, 10, 11, rows=1))


def test_a_batch_of_markers_alone_moves_the_position() -> None:
    """Else a table that is complete would look behind for ever."""
    progress = TableProgress("t")
    told = {**told_batch(0, 0, 6), "numInputRows": 0, "observedMetrics": {}}
    assert progress.took(told)
    assert progress.behind({0: 6}) == 0


def test_before_kafka_has_answered_nobody_knows_how_far_behind() -> None:
    """0 would read as complete."""
    assert summary(TableProgress("t"), {})["behind"] is None


def test_the_job_is_as_well_as_its_worst_query() -> None:
    """One word must not hide a table that stands still."""
    fine, bad = TableProgress("a", State.RUNNING), TableProgress("b", State.RESTARTING)
    assert job_state([fine, bad]) is State.RESTARTING
    assert job_state([fine]) is State.RUNNING


class Query:
    """A streaming query that fails, or has read everything, as the test says."""

    def __init__(self) -> None:
        self.isActive = True
        self.error: Exception | None = None
        self._jsq = self

    def exception(self) -> Exception | None:
        return self.error

    def lastProgress(self) -> None:
        return None


class Group:
    """A consumer group that nobody looks at."""

    def publish(self, positions: dict[int, int]) -> None:
        assert positions == {}


def query(launch: Callable[[], Any]) -> TableQuery:
    return TableQuery(TableProgress("t"), launch, Group())  # type: ignore[arg-type]


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
        table_query.turn(now, "")
    delays = [round(b - a, 1) for (a, _), (b, _) in pairwise(started)]
    assert delays == [1.1, 2.1, 4.1, 8.1, 16.1]
    assert table_query.progress.state is State.RESTARTING
    assert table_query.progress.reason == "disk full"


def test_a_query_waits_for_what_it_needs_and_says_so() -> None:
    """P7: Kafka away, or its topic, is no failure."""
    table_query = query(Query)
    table_query.turn(0.0, "topic r does not exist")
    assert table_query.progress.state is State.STARTING
    assert table_query.progress.reason == "waiting: topic r does not exist"
    table_query.turn(1.0, "")
    assert table_query.progress.state is State.RUNNING
    assert table_query.progress.reason == ""


def test_a_query_that_has_read_everything_is_finished() -> None:
    """`--once` ends when all are."""
    running = Query()
    table_query = query(lambda: running)
    table_query.turn(0.0, "")
    running.isActive = False
    table_query.turn(1.0, "")
    assert table_query.finished


def test_a_mistake_in_the_file_ends_the_job_only_at_the_first_start() -> None:
    """Later the file was right already, and what changed may change back."""
    attempts: list[Any] = [ConfigError("no"), Query(), ConfigError("no")]

    def launch() -> Any:
        found = attempts.pop(0)
        if isinstance(found, ConfigError):
            raise found
        return found

    with pytest.raises(ConfigError):
        query(launch).turn(0.0, "")
    table_query = query(launch)
    table_query.turn(0.0, "")
    table_query._query.isActive = False  # type: ignore[union-attr]
    table_query._query.error = OSError("gone")  # type: ignore[union-attr]
    table_query.turn(1.0, "")
    table_query.turn(9.0, "")
    assert (table_query.progress.state, table_query.progress.reason) == (State.RESTARTING, "no")


def test_a_lease_has_one_holder_who_is_known(tmp_path: Path) -> None:
    """Two jobs on one checkpoint would corrupt it."""
    first, second = Lease(str(tmp_path / "c")), Lease(f"file://{tmp_path}/c")
    assert first.take()
    assert first.take()
    assert not second.take()
    assert second.holder() == {"pid": os.getpid(), "host": socket.gethostname()}
    assert Lease("s3a://bucket/c").take()


def test_a_child_of_another_than_its_supervisor_ends_at_once() -> None:
    """The supervisor may have died before the child could ask to be told."""
    assert end_with_parent({})
    environment = {"KWORKER_PARENT_PID": "1", "OTHER": ""}
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
    entry = summary(TableProgress("t", State.RUNNING, batch=4), {0: 3})
    assert json.loads(json.dumps(entry)) == entry
    assert (entry["batch"], entry["behind"], entry["state"]) == (4, 3, "running")


def test_types_that_hold_no_objects_need_no_look_inside() -> None:
    """The check of inner names costs a parse of its own."""
    flat = parsed_columns(columns(a="long"))[-1]
    assert "from_json" not in flat
    nested = StructType().add("a", columns(b="long")).add("c", StringType())
    assert "from_json" in parsed_columns(nested)[-1]
