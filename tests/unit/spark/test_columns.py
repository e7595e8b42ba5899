"""The Spark job's decisions, all made without a JVM."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import StringType, StructType

from kworker.config.model import Config, KafkaSettings, SourceSettings, SparkSettings, TableSettings
from kworker.errors import ConfigError
from kworker.spark import launch
from kworker.spark.batch_limits import BatchLimits
from kworker.spark.launch import Launcher
from kworker.spark.progress import TableProgress
from kworker.spark.reasons import explained, reason, shortened
from kworker.spark.rows.columns import (
    SOURCE_COLUMNS,
    Repartitioned,
    added_columns,
    check_partitions,
    leaves_out_repeats,
    merge_statement,
    misfit_column,
    missing_columns,
    parsed_columns,
    wanted,
)
from kworker.spark.rows.kafka_options import source_options, starting_offsets
from kworker.spark.session.archives import not_shipped
from kworker.spark.session.settings import properties, properties_text
from kworker.spark.sql import identifier, literal
from kworker.spark.tables.sinks import AVAILABLE_NOW, Sink, trigger_of


def columns(**types: str) -> StructType:
    """A schema, from names and Spark's names of types."""
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in types.items()
    ]
    return StructType.fromJson({"fields": fields})


def table(**settings: Any) -> TableSettings:
    return TableSettings.model_validate({"name": "t", "path": "/data/t", **settings})


def config(*tables: TableSettings, state_dir: Path = Path("/run/x"), **spark: Any) -> Config:
    return Config(
        name="orders",
        handler="m:f",
        state_dir=state_dir,
        source=SourceSettings(topics=["orders"]),
        kafka=KafkaSettings(common={"bootstrap.servers": "127.0.0.1:9092"}),
        spark=SparkSettings.model_validate({"tables": list(tables) or [table()], **spark}),
        file=Path("/etc/kworker.toml"),
    )


def test_the_stream_is_read_committed_and_never_skips_a_gap() -> None:
    """Exactly once rests on the first, no loss on the second; librdkafka's tuning is not Java's."""
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
        (columns(a="string"), "column a is bigint in the table, but string in the rows"),
        (columns(b="long"), "the table has a column a, but the rows do not"),
    ],
)
def test_any_other_change_of_columns_is_refused(want: StructType, why: str) -> None:
    """The table's old rows could not be read as the new ones."""
    with pytest.raises(ValueError, match=why):
        added_columns(columns(a="long"), want)


@pytest.mark.parametrize(
    ("want", "by"),
    [([], "empty"), (["b"], "b"), (["b", "a"], "b, a"), (["a", "b", "c"], "a, b, c")],
)
def test_another_partitioning_is_refused(want: list[str], by: str) -> None:
    """As folders they are nested, so their order counts; how they are spelt does not."""
    check_partitions(["a", "B"], ["A", "b"])
    with pytest.raises(
        Repartitioned, match=f"^the table is partitioned by a, B, but partition_by is {by}$"
    ):
        check_partitions(["a", "B"], want)


@pytest.mark.parametrize(
    ("settings", "raised", "key"),
    [
        ({}, Repartitioned("changed"), "partition_by"),
        ({}, ValueError("changed"), "schema"),
        ({"transform": "m:f"}, ValueError("changed"), "transform"),
    ],
)
def test_a_changed_table_is_refused_with_the_reset_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    raised: ValueError,
    key: str,
) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise raised

    monkeypatch.setattr(launch, "prepare_table", refuse)
    nothing = SimpleNamespace(
        take=lambda _query: None, taken=False, creating=lambda _columns: nullcontext()
    )
    monkeypatch.setattr(launch, "fence_of", lambda *_: nothing)
    watch: Any = SimpleNamespace(topic_id="id", ends={}, begins=dict)
    rows = SimpleNamespace(schema=None, counts_again=False)
    monkeypatch.setattr(Launcher, "_rows", lambda *_: rows)
    spark = config().spark
    assert spark
    bounds = BatchLimits(spark, tmp_path, lambda _: None)
    launcher = Launcher(cast(Any, None), config(), watch, AVAILABLE_NOW, bounds)
    sink = Sink(table(**settings), 0, str(tmp_path / "c" / "t"))
    with pytest.raises(ConfigError) as refused:
        launcher.launch(sink, TableProgress("t"))
    assert str(refused.value) == (
        f"spark.tables[t].{key}: changed: change it back, or name another path, and fill that"
        " with kworker spark reset --table t --from earliest"
    )


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


def test_an_update_replaces_no_later_row_by_an_earlier_one() -> None:
    """A result that comes again alone, in a later batch, would put an old value back."""
    matched = (
        "WHEN MATCHED AND (CASE WHEN r.source_topic = t.source_topic"
        " AND r.source_partition = t.source_partition"
        " THEN struct(r.source_offset, r.source_index) >= struct(t.source_offset, t.source_index)"
        " ELSE struct(r.source_timestamp, "
    )
    rows = [*SOURCE_COLUMNS, "a"]
    assert matched in merge_statement("t", "v", rows, ["a"], update=True)
    # What a transform has added up has no position; it comes in the order of the batches.
    assert "WHEN MATCHED THEN UPDATE SET t.`a` = r.`a` WHEN" in merge_statement(
        "t", "v", ["a"], ["a"], update=True
    )


def test_dedupe_merges_on_the_source_and_update_on_merge_on() -> None:
    """The source tells repeated results apart; an update has the keys that its user names."""
    assert Sink(table(dedupe=True), 0, "c").merge_keys == SOURCE_COLUMNS
    assert Sink(table(mode="update", merge_on=["a"]), 0, "c").merge_keys == ("a",)
    assert Sink(table(), 0, "c").merge_keys == ()
    both = table(dedupe=True, mode="update", merge_on=["a"])
    assert Sink(both, 0, "c").merge_keys == ("a",)


def test_only_dedupe_tables_transform_within_the_batch() -> None:
    """An update's is one of the stream: it may add up over batches."""
    assert leaves_out_repeats(table(dedupe=True))
    assert not leaves_out_repeats(table())
    assert not leaves_out_repeats(table(dedupe=True, mode="update", merge_on=["a"]))


def test_a_column_that_the_rows_lack_is_named_with_its_key() -> None:
    """A transform may have dropped it, which the file alone cannot tell."""
    merged = table(mode="update", merge_on=["KEY", "minute"])
    assert missing_columns(merged, ["key"]) == [
        "merge_on: the rows have no column minute; they have key"
    ]
    assert missing_columns(table(dedupe=True), list(SOURCE_COLUMNS)) == []


def test_an_interval_is_milliseconds_and_once_is_available_now() -> None:
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


def test_user_settings_win_over_defaults() -> None:
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
    assert not_shipped(tmp_path, found) == found[1:]


_CALLED = "An error occurred while calling o91.start."


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
        (
            f"{_CALLED}\n: java.io.IOException: x\n\nDuring handling of it:\n\nTraceback (most"
            ' recent call last):\n  File "x", line 1\nkworker.spark.fences.Fenced: not now\n',
            "not now",
        ),
        ("x" * 1000, "x" * 300),
    ],
)
def test_an_exception_of_pages_becomes_a_line(text: str, line: str) -> None:
    """It stands in `status`, and after a key of the configuration."""
    assert shortened(text) == line


def test_only_the_root_of_a_java_exception_is_told() -> None:
    """Its own text begins with the number of an object, and the root is pages below."""
    text = (
        f"{_CALLED}\n: java.lang.RuntimeException: no lock\n"
        "\tat a.B.c(B.java:1)\nCaused by: java.io.IOException: one\n\tat d.E\n"
        "Caused by: java.nio.file.AccessDeniedException: /d/_delta_log\n\t... 9 more"
    )
    told = "RuntimeException: no lock (AccessDeniedException: /d/_delta_log)"
    step = ": let the user that runs the job write there, or name another place"
    assert reason(OSError(text)) == f"{told}{step}"
    # Of a function that Spark has called back, it stands below Python's own lines.
    called_back = f"x terminated with exception: Traceback (most recent call last):\n  F\nE: {text}"
    assert shortened(called_back) == told
    alone = "An error occurred while calling o9.sql.\n: java.io.IOException: full\n\tat a.B"
    assert reason(OSError(alone)) == "IOException: full"


LOSS = (
    "org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost"
    " because they are not available in Kafka any more;\nIf you don't want your streaming query"
    " to fail on such cases, set the source option failOnDataLoss to false.\nReason: Could not"
    " read records in offset [0, 8) for topic partition r-1\nwith consumer group x."
)
FAILED = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/d. SQLSTATE: 58030"


@pytest.mark.parametrize(
    ("causes", "why"),
    [
        (
            [FAILED, LOSS],
            "Kafka no longer has results that the table lacks (Could not read records in offset"
            " [0, 8) for topic partition r-1): to go on with what is left, stop the job, then"
            " kworker spark reset --table t --from committed",
        ),
        (
            [FAILED, "java.io.IOException: No space left on device"],
            "[TASK_WRITE_FAILED] Task failed while writing rows to file:/d."
            " (IOException: No space left on device)",
        ),
        (
            ["x.ChecksumException: Checksum error: file:/d/1"],
            "ChecksumException: Checksum error: file:/d/1; see /d/_checkpoints/t: stop the job,"
            " then kworker spark reset --table t --from earliest",
        ),
        ([FAILED, FAILED], "[TASK_WRITE_FAILED] Task failed while writing rows to file:/d."),
    ],
)
def test_a_failed_query_is_explained_by_root_and_next_step(causes: list[str], why: str) -> None:
    """Spark's first line says what it was doing, the last cause what was in its way."""
    assert explained(table(), "/d/_checkpoints/t", causes) == why


def test_a_reset_begins_new_partitions_at_their_beginning() -> None:
    """Spark wants a position for each that there is."""
    assert starting_offsets("r", {0: 12}, [0, 1]) == '{"r": {"0": 12, "1": -2}}'
    assert source_options({}, "r", "x")["startingOffsets"] == "x"


def test_types_that_hold_no_objects_need_no_look_inside() -> None:
    """The check of inner names costs a parse of its own."""
    flat = parsed_columns(columns(a="long"), plain=True)[-1]
    assert "from_json" not in flat
    nested = StructType().add("a", columns(b="long")).add("c", StringType())
    assert "from_json" in parsed_columns(nested, plain=True)[-1]
