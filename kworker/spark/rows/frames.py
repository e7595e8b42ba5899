"""Data frames: the stream of results, and the rows of each table from it."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from kworker.config.model import Config, TableSettings
from kworker.config.spark_rules import RECORD_COLUMN, RESCUED_COLUMN
from kworker.spark.checkpoints.checkpoint import Positions
from kworker.spark.checkpoints.set_aside import is_among
from kworker.spark.reasons import reason
from kworker.spark.rows.columns import (
    ENVELOPE,
    IS_RESULT,
    LEADING,
    RESULT,
    SOURCE_COLUMNS,
    TEXT_COLUMNS,
    has_schema,
    leaves_out_repeats,
    misfit_column,
    missing_columns,
    parsed_columns,
    wanted,
)
from kworker.spark.rows.kafka_options import ending_offsets, source_options, starting_offsets
from kworker.spark.rows.plain import PLAIN_OPTIONS, is_plain, may_be_plain, plain_schema
from kworker.spark.rows.transforms import apply, load_transform
from kworker.spark.rows.values import read_schema

Shape = Callable[[DataFrame], DataFrame]
"""Turns rows of results into rows of a table."""

Span = tuple[Positions | None, Positions]
"""The begin of a batch, None if unknown, and its end."""

READ = "read"
TAKEN = "taken"
"""The names of the counters in a query's progress."""


def unchanged(rows: DataFrame) -> DataFrame:
    """Returns the rows as they are, for a table without a transform."""
    return rows


def results(
    session: SparkSession,
    config: Config,
    batch_records: int,
    starting: str = "earliest",
    left_out: Mapping[int, Sequence[int]] | None = None,
) -> DataFrame:
    """The stream of Kafka records in the results topic; nothing is read before a query starts.

    The offsets in `left_out`, by partition, are filtered out.
    """
    options = source_options(config.kafka.common, config.delivery.results, starting)
    # Bounds a batch's memory, and what a crash repeats.
    options["maxOffsetsPerTrigger"] = str(batch_records)
    records = session.readStream.format("kafka").options(**options).load()
    return records.where(f"NOT ({is_among(left_out)})") if left_out else records


def records_between(session: SparkSession, config: Config, span: Span) -> DataFrame:
    """The Kafka records between the begin and the end in `span`, as a static data frame."""
    begin, end = span
    topic = config.delivery.results
    starting = starting_offsets(topic, begin or {}, end)
    options = source_options(config.kafka.common, topic, starting)
    options["endingOffsets"] = ending_offsets(topic, end)
    # Just these: the topic may have got more partitions since.
    del options["subscribe"]
    options["assign"] = json.dumps({topic: sorted(end)})
    return session.read.format("kafka").options(**options).load()


class TableRows(NamedTuple):
    """The stream for a table's query, the table's columns, and a function for each batch.

    `shape` turns a batch of the stream into rows of the table. `counts_again` is True if the rows
    are sums to which a repeated result is added again.
    """

    stream: DataFrame
    schema: StructType
    shape: Shape
    counts_again: bool = False


def table_rows(stream: DataFrame, table: TableSettings, config: Config) -> TableRows:
    """A table's rows, after its transform if it has one.

    Raises ValueError with the text `key: problem` if a setting of the table is wrong, and
    TransformRaised if the transform raised an error that may pass.
    """
    rows = rows_of(stream, table)
    shape = _transform(table, config) if table.transform else unchanged
    shaped = shape(rows)
    missing = missing_columns(table, shaped.columns)
    if missing:
        raise ValueError(missing[0])
    if leaves_out_repeats(table):
        # After a transform the rows of a repeated result cannot be told from each other.
        return TableRows(rows, shaped.schema, shape)
    adds_up = not set(SOURCE_COLUMNS) <= set(shaped.columns)
    if adds_up and table.dedupe:
        shaped = shape(rows.dropDuplicates(list(SOURCE_COLUMNS)))
    return TableRows(shaped, shaped.schema, unchanged, adds_up and not table.dedupe)


def transformed(records: DataFrame, table: TableSettings, config: Config) -> DataFrame:
    """Applies the table's transform to Kafka records. Raises as `table_rows` does."""
    return _transform(table, config)(rows_of(records, table))


_STATEFUL = re.compile(
    r"(Aggregate|Deduplicate|Distinct|FlatMapGroups|TransformWithState|GlobalLimit|Window)"
)


_BEFORE_NAME = " :+-~'"  # the tree's lines, and the marks of a streaming plan


def keeps_state(rows: DataFrame) -> bool:
    """True if a query of these rows keeps state between batches, such as sums."""
    plan: Any = rows._jdf.queryExecution().analyzed()
    names = [line.lstrip(_BEFORE_NAME) for line in plan.treeString().splitlines()]
    streams = sum(name.startswith("StreamingRelation") for name in names)
    return streams > 1 or any(map(_STATEFUL.match, names))


def rows_of(stream: DataFrame, table: TableSettings) -> DataFrame:
    """The rows before any transform: source position, key, columns and `_rescued`.

    If the table has a transform, they also hold the Kafka record itself.
    """
    records = _parsed_headers(stream)
    foreign = f.count_if(~f.expr(IS_RESULT)).alias("foreign")
    size = f.sum(f.octet_length("value")).alias("bytes")
    taken = records.observe(READ, foreign, size).where(IS_RESULT).where(wanted(table))
    record = [f"record AS {RECORD_COLUMN}"] if table.transform else []
    texts = taken.selectExpr(*LEADING, "text", "value", *record)
    kept = [RECORD_COLUMN] if table.transform else []
    if has_schema(table):
        rows = _parsed(texts, table, kept)
    else:
        rows = texts.selectExpr(*TEXT_COLUMNS, *kept)
    rescued = f.count(RESCUED_COLUMN).alias("rescued")
    return rows.observe(TAKEN, f.count(f.lit(1)).alias("rows"), rescued)


def positions_of(records: DataFrame, table: TableSettings) -> DataFrame:
    """The partitions and offsets of those Kafka records that are results for this table."""
    return results_of(records, table).select("partition", "offset")


def results_of(records: DataFrame, table: TableSettings) -> DataFrame:
    """The results for this table among Kafka records: the columns of RESULT, and the position."""
    return _parsed_headers(records, "partition", "offset").where(IS_RESULT).where(wanted(table))


def _parsed_headers(records: DataFrame, *kept: str) -> DataFrame:
    """Parses Kafka records and their headers into the columns that the constant RESULT lists.

    Also keeps the Kafka columns that are named in `kept`.
    """
    return records.selectExpr(*kept, *ENVELOPE).selectExpr(*kept, *RESULT)


def _parsed(texts: DataFrame, table: TableSettings, kept: Sequence[str]) -> DataFrame:
    schema = parse_schema(table.schema_)
    misfit = misfit_column(schema)
    fields = StructType([*read_schema(schema).fields, StructField(misfit, StringType())])
    # Permissive: a field that does not fit is NULL, the others keep their values.
    options = {
        "mode": "PERMISSIVE",
        "allowSingleQuotes": "false",
    }  # JSON has double quotes only
    plain = plain_schema(schema)
    try:
        rest = "text"
        if plain is not None:
            some = f.expr(f"CASE WHEN {may_be_plain('text', schema)} THEN text END")
            read = f.from_json(some, plain, {**options, **PLAIN_OPTIONS})
            texts = texts.withColumn("plain", read)
            texts = texts.withColumn("is_plain", f.expr(is_plain("plain", "text", schema)))
            rest = "CASE WHEN NOT is_plain THEN text END"
        parsed = f.from_json(f.expr(rest), fields, {**options, "columnNameOfCorruptRecord": misfit})
        split = texts.select(
            "*", parsed.alias("parsed"), f.expr(f"json_object_keys({rest}) AS fields")
        )
        return split.selectExpr(*parsed_columns(schema, plain=plain is not None), *kept)
    except AnalysisException as error:
        raise ValueError(f"schema: results cannot be read with it: {reason(error)}") from error


def parse_schema(ddl: str) -> StructType:
    """Parses a schema in Spark's DDL. Raises ValueError with the text `schema: problem`."""
    try:
        schema = StructType.fromDDL(ddl)
    except ParseException as error:
        raise ValueError(f"schema: {reason(error)}") from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise ValueError('schema: expected columns such as "order_id BIGINT, total DOUBLE"')
    return schema


def _transform(table: TableSettings, config: Config) -> Shape:
    def shape(rows: DataFrame) -> DataFrame:
        try:
            transform = load_transform(table.transform, config.file.parent)
            return apply(transform, table.transform, rows).drop(RECORD_COLUMN)
        except ValueError as error:
            raise ValueError(f"transform: {error}") from error

    return shape
