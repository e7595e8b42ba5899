"""Where a table's rows go: Delta, Parquet or Iceberg; appended, rewritten or merged."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructField, StructType

from kworker.config import Spark, Table
from kworker.core.duration import parse_duration
from kworker.spark.checkpoint import Damaged
from kworker.spark.guard import is_merged
from kworker.spark.reasons import reason
from kworker.spark.session import iceberg_table
from kworker.spark.sql import identifier, literal
from kworker.spark.tables import (
    IN_PARTITION,
    LATEST,
    SEEN,
    SOURCE_COLUMNS,
    added_columns,
    check_partitions,
    merge_statement,
)


@dataclass(frozen=True, slots=True)
class Sink:
    """One table as a place to write to; `index` is its place in the configuration."""

    table: Table
    index: int
    checkpoint: str

    @property
    def name(self) -> str:
        """How SQL names the table; Parquet by path has no such name."""
        if self.table.table:
            return self.table.table
        if self.table.format == "iceberg":
            return iceberg_table(self.index, self.table.path)
        return f"{self.table.format}.{identifier(self.table.path)}"

    @property
    def merge_keys(self) -> tuple[str, ...]:
        """The columns that tell rows apart where batches are merged; else none."""
        if self.table.mode == "update":
            return tuple(self.table.merge_on)
        return SOURCE_COLUMNS if leaves_out_repeats(self.table) else ()


def leaves_out_repeats(table: Table) -> bool:
    """Whether rows are merged by their sources; an update knows them by keys of its own."""
    return is_merged(table) and table.mode == "append"


def sinks(spark: Spark) -> list[Sink]:
    """Of all tables, in the order of the configuration."""
    folder = spark.checkpoints.rstrip("/")
    return [
        Sink(table, index, f"{folder}/{table.name}") for index, table in enumerate(spark.tables)
    ]


def missing_columns(table: Table, columns: list[str]) -> list[str]:
    """A problem, after its key, for each column that the configuration names in vain."""
    known = {name.casefold() for name in columns}
    dedupe = SOURCE_COLUMNS if leaves_out_repeats(table) else ()
    named = {"merge_on": table.merge_on, "partition_by": table.partition_by, "dedupe": dedupe}
    return [
        f"{key}: the rows have no column {name}; they have {', '.join(columns)}"
        for key, names in named.items()
        for name in names
        if name.casefold() not in known
    ]


def prepare(session: SparkSession, sink: Sink, rows: StructType, *, wrote: bool) -> None:
    """Makes the table if it is not there, and adds the columns that are new.

    Repartitioned or another ValueError when it is there and differs otherwise; AnalysisException
    for a place or names that the format refuses; Damaged when it is not there, but batches were
    written to it.
    """
    # As nullable: a later change of the transform could not loosen it.
    columns = StructType([StructField(c.name, c.dataType, True) for c in rows.fields])
    if sink.table.format == "parquet":
        _compare_files(session, sink, columns)
        return
    if wrote:
        _expect(session, sink)
    else:
        session.sql(_create_statement(sink, columns))
    if sink.table.format == "delta" and sink.table.partition_by:
        # Else each batch would fail. Where none are named, or Iceberg writes, the table's own hold.
        [detail] = session.sql(f"DESCRIBE DETAIL {sink.name}").collect()
        check_partitions(detail["partitionColumns"], sink.table.partition_by)
    for added in added_columns(session.table(sink.name).schema, columns):
        place = f"AFTER {identifier(added.after)}" if added.after else "FIRST"
        column = StructType([added.field]).toDDL()
        session.sql(f"ALTER TABLE {sink.name} ADD COLUMNS ({column} {place})")


def _compare_files(session: SparkSession, sink: Sink, columns: StructType) -> None:
    """Parquet's files are as they were written, and must go on being readable together.

    Repartitioned or ValueError when they would not; files with a column more are for readers
    who merge schemas.
    """
    try:
        files = session.read.option("mergeSchema", "true")
        there = session.table(sink.name) if sink.table.table else files.parquet(sink.table.path)
    except AnalysisException:
        return  # no file yet
    check_partitions(_folders(there), sink.table.partition_by)
    # Of what stands in the names of folders, Spark guesses the types.
    apart = {name.casefold() for name in sink.table.partition_by}
    have, want = (
        StructType([field for field in each.fields if field.name.casefold() not in apart])
        for each in (there.schema, columns)
    )
    added_columns(have, want)


def _folders(files: DataFrame) -> list[str]:
    """The columns that stand in the names of folders, from the outermost."""
    leaves = files._jdf.queryExecution().analyzed().collectLeaves()
    return list(leaves.head().relation().partitionSchema().fieldNames())


def _expect(session: SparkSession, sink: Sink) -> None:
    """An empty one in its place would go on where the other ended."""
    try:
        session.table(sink.name)
    except AnalysisException as error:
        place = sink.table.path or sink.table.table
        problem = f"{sink.checkpoint} goes on with a table that is not at {place}"
        raise Damaged(f"{problem} ({reason(error)})", "earliest") from error


def _create_statement(sink: Sink, columns: StructType) -> str:
    parts = ", ".join(identifier(name) for name in sink.table.partition_by)
    partitioned = f" PARTITIONED BY ({parts})" if parts else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {sink.name} ({columns.toDDL()})"
        f" USING {sink.table.format}{partitioned}"
    )


Shape = Callable[[DataFrame], DataFrame]
"""Makes a table's rows of those of the results."""


def unchanged(rows: DataFrame) -> DataFrame:
    """The shape of rows that are the table's own."""
    return rows


def start(rows: DataFrame, sink: Sink, trigger: str, shape: Shape = unchanged) -> StreamingQuery:
    """Starts the query that writes the rows; AnalysisException for what the mode cannot do.

    `shape` makes them the table's, where repeats have to be left out before.
    """
    table = sink.table
    writer = rows.writeStream.queryName(table.name).option("checkpointLocation", sink.checkpoint)
    writer = _triggered(writer, trigger).outputMode(table.mode)
    if sink.merge_keys:
        return writer.foreachBatch(_merger(sink, shape)).start()
    if table.format == "iceberg":
        return writer.foreachBatch(_SnapshotWriter(sink)).start()
    writer = writer.format(table.format)
    # An existing table knows how it is partitioned; here it may be Parquet's first file.
    writer = writer.partitionBy(*table.partition_by)
    return writer.toTable(table.table) if table.table else writer.start(table.path)


AVAILABLE_NOW = "available-now"


def trigger_of(spark: Spark, once: bool) -> str:
    """`available-now`, or the interval as Spark spells it."""
    if once or spark.trigger == AVAILABLE_NOW:
        return AVAILABLE_NOW
    return f"{round(parse_duration(spark.trigger) * 1000)} milliseconds"


def _triggered(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger)


_QUERY, _BATCH = "kworker.query", "kworker.batch"  # of a snapshot; its names are in lower case


def _told(name: str, native: str) -> str:
    """SQL of what a snapshot tells; one of Iceberg's own sink tells the same otherwise."""
    others = literal(f"spark.sql.streaming.{native}")
    return f"coalesce(summary[{literal(name)}], summary[{others}])"


class _SnapshotWriter:
    """Writes a query's batches to an Iceberg table, each as one snapshot that tells which it is.

    Iceberg's own sink names a file by batch and task, and tasks count from 0 in each JVM: a batch
    that comes again after a kill may write over a file of the table, and remove it if it fails.
    Here files have new names at each attempt.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._written: int | None = None  # the last batch in the table; only the first is a repeat

    def __call__(self, batch: DataFrame, number: int) -> None:
        session = batch.sparkSession
        query = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query
        if self._written is None:
            self._written = self._last(session, query)
        if number <= self._written:
            return
        writer = batch.writeTo(self._sink.name).option("fanout-enabled", "true")
        for name, value in ((_QUERY, query), (_BATCH, str(number))):
            writer = writer.option(f"snapshot-property.{name}", value)
        if self._sink.table.mode == "complete":
            writer.overwrite(f.lit(True))
        else:
            writer.append()
        self._written = number

    def _last(self, session: SparkSession, query: str) -> int:
        """The last batch of the query that is in the table, or -1."""
        name = self._sink.name
        [row] = session.sql(
            f"SELECT max(CAST({_told(_BATCH, 'epochId')} AS BIGINT)) AS last"
            f" FROM {name}.snapshots JOIN {name}.history USING (snapshot_id)"
            f" WHERE is_current_ancestor AND {_told(_QUERY, 'queryId')} = {literal(query)}"
        ).collect()
        return -1 if row["last"] is None else int(row["last"])


def _merger(sink: Sink, shape: Shape) -> Callable[[DataFrame, int], None]:
    """Writes a batch by its keys, so that a batch which comes again changes nothing."""
    view = f"kworker_rows_{sink.index}"
    update = sink.table.mode == "update"

    def merge(batch: DataFrame, _batch_id: int) -> None:
        # Once read, twice used: the merge joins first, and then writes.
        rows = _latest(batch, sink.merge_keys) if update else shape(_distinct(batch))
        rows.persist()
        try:
            if not rows.isEmpty():
                rows.createOrReplaceTempView(view)
                columns, keys = rows.columns, sink.merge_keys
                statement = merge_statement(sink.name, view, columns, keys, update=update)
                rows.sparkSession.sql(statement)
        finally:
            rows.unpersist()

    return merge


def _distinct(batch: DataFrame) -> DataFrame:
    return batch.dropDuplicates(list(SOURCE_COLUMNS))


def _latest(batch: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """One row for each key, as a merge demands: the latest of its partition, and then of all.

    Rows of an aggregate, which have no source position, are one for each key already.
    """
    if not set(SOURCE_COLUMNS) <= set(batch.columns):
        return batch.dropDuplicates(list(keys))
    of_partition = batch.groupBy(*{*keys, "source_topic", "source_partition"})
    last = of_partition.agg(_last(IN_PARTITION)).select("row.*")
    seen = f.collect_list(f.struct(*SOURCE_COLUMNS[:-1])).alias(SEEN)
    return last.groupBy(*keys).agg(_last(LATEST), seen).select("row.*", SEEN)


def _last(by: Iterable[str]) -> Column:
    return f.max_by(f.struct("*"), f.struct(*by)).alias("row")
