"""The sink of a table: its name, its creation, and the start of the query that writes to it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructField, StructType

from kworker.config.model import SparkSettings, TableSettings
from kworker.core.duration import parse_duration
from kworker.errors import ConfigError
from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.checkpoints.folders import local_folder
from kworker.spark.reasons import reason
from kworker.spark.rows.columns import (
    SOURCE_COLUMNS,
    added_columns,
    check_partitions,
    leaves_out_repeats,
)
from kworker.spark.session.settings import iceberg_table
from kworker.spark.sql import identifier

_SPARK_LOG = "_spark_metadata"


@dataclass(frozen=True, slots=True)
class Sink:
    """The table to which a query writes; `index` is its position in the configuration."""

    table: TableSettings
    index: int
    checkpoint: str

    @property
    def name(self) -> str:
        """The table's name in Spark SQL. Parquet files are read and written by path instead."""
        if self.table.table:
            return self.table.table
        if self.table.format == "iceberg":
            return iceberg_table(self.index, self.table.path)
        return f"{self.table.format}.{identifier(self.table.path)}"

    @property
    def merge_keys(self) -> tuple[str, ...]:
        """The columns by which batches are merged into the table; none if they are not merged."""
        if self.table.mode == "update":
            return tuple(self.table.merge_on)
        return SOURCE_COLUMNS if leaves_out_repeats(self.table) else ()


def sinks(spark: SparkSettings) -> list[Sink]:
    """The sinks of all tables, in the order of the configuration."""
    folder = spark.checkpoints.rstrip("/")
    return [
        Sink(table, index, f"{folder}/{table.name}") for index, table in enumerate(spark.tables)
    ]


def table_exists(session: SparkSession, sink: Sink) -> bool:
    """True if Spark finds the table by its SQL name."""
    try:
        session.table(sink.name)
    except AnalysisException:
        return False
    return True


def prepare_table(session: SparkSession, sink: Sink, rows: StructType, *, wrote: bool) -> None:
    """Creates the table if it does not exist, and adds columns; a Parquet table is only checked.

    Raises Damaged if the table is missing although batches were written to it (`wrote`).
    Raises Repartitioned for other partition columns, another ValueError for columns that are gone
    or have another type, and AnalysisException for a path or name that the format refuses.
    """
    # All nullable: a later change of the transform could not relax it.
    columns = StructType([StructField(c.name, c.dataType, True) for c in rows.fields])
    if sink.table.format == "parquet":
        _check_files(session, sink, wrote=wrote)
        _compare_files(session, sink, columns)
        return
    if wrote:
        _check_exists(session, sink)
    else:
        session.sql(_create_statement(sink, columns))
    if sink.table.format == "delta" and sink.table.partition_by:
        # Else each batch would fail. With none configured, or in Iceberg, the table's own apply.
        [detail] = session.sql(f"DESCRIBE DETAIL {sink.name}").collect()
        check_partitions(detail["partitionColumns"], sink.table.partition_by)
    for added in added_columns(session.table(sink.name).schema, columns):
        place = f"AFTER {identifier(added.after)}" if added.after else "FIRST"
        column = StructType([added.field]).toDDL()
        session.sql(f"ALTER TABLE {sink.name} ADD COLUMNS ({column} {place})")


def _check_files(session: SparkSession, sink: Sink, *, wrote: bool) -> None:
    """Raises ConfigError if Spark's own sink wrote the folder, or if it is a mount point.

    Raises Damaged if the folder is missing although batches were written to it.
    """
    path, key = sink.table.path, f"spark.tables[{sink.table.name}]"
    jvm: Any = session._jvm
    log = jvm.org.apache.hadoop.fs.Path(path, _SPARK_LOG)
    files = log.getFileSystem(session._jsc.hadoopConfiguration())
    if wrote and not files.exists(log.getParent()):
        raise _missing_table(sink)
    if files.exists(log):
        raise ConfigError(
            f"{key}.path: {log} shows that Spark's built-in file sink wrote this folder, and"
            " kworker cannot continue such a table: give another path"
        )
    folder = local_folder(path)
    if folder is not None and _is_mounted(folder):
        raise ConfigError(
            f"{key}.path: {path} is a mount point: files are written beside the table's folder and"
            f" then renamed into it, which a mount point prevents; give a folder below {path}"
        )


def _is_mounted(folder: Path) -> bool:
    try:
        return os.stat(folder).st_dev != os.stat(folder.parent).st_dev
    except OSError:
        return False  # it does not exist yet


def _compare_files(session: SparkSession, sink: Sink, columns: StructType) -> None:
    """Checks that the table's Parquet files and new ones can be read together.

    Raises Repartitioned or ValueError when they cannot. With an added column, a reader needs
    Spark's option mergeSchema.
    """
    try:
        there = session.read.option("mergeSchema", "true").parquet(sink.table.path)
    except AnalysisException:
        return  # no file yet
    check_partitions(_folders(there), sink.table.partition_by)
    # Spark guesses the types of columns in the names of folders.
    apart = {name.casefold() for name in sink.table.partition_by}
    have, want = (
        StructType([field for field in each.fields if field.name.casefold() not in apart])
        for each in (there.schema, columns)
    )
    added_columns(have, want)


def _folders(files: DataFrame) -> list[str]:
    """Returns the partition columns that the table's folders have in their names.

    The column of the outermost folder comes first.
    """
    leaves = files._jdf.queryExecution().analyzed().collectLeaves()
    return list(leaves.head().relation().partitionSchema().fieldNames())


def _check_exists(session: SparkSession, sink: Sink) -> None:
    """Raises Damaged if the table is missing.

    Without this check, the query would go on with a new, empty table.
    """
    try:
        session.table(sink.name)
    except AnalysisException as error:
        raise _missing_table(sink, reason(error)) from error


def _missing_table(sink: Sink, why: str = "") -> Damaged:
    place = sink.table.path or sink.table.table
    problem = f"{sink.checkpoint} continues a table that is not at {place}"
    return Damaged(f"{problem} ({why})" if why else problem, "earliest")


def _create_statement(sink: Sink, columns: StructType) -> str:
    parts = ", ".join(identifier(name) for name in sink.table.partition_by)
    partitioned = f" PARTITIONED BY ({parts})" if parts else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {sink.name} ({columns.toDDL()})"
        f" USING {sink.table.format}{partitioned}"
    )


def start_query(
    rows: DataFrame, sink: Sink, trigger: str, write: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """Starts the query, whose batches are passed to `write`.

    Raises AnalysisException for an output mode that the query cannot have.
    """
    table = sink.table
    writer = rows.writeStream.queryName(table.name).option("checkpointLocation", sink.checkpoint)
    return _triggered(writer, trigger).outputMode(table.mode).foreachBatch(write).start()


AVAILABLE_NOW = "available-now"


def trigger_of(spark: SparkSettings, once: bool) -> str:
    """Returns `available-now` if `once` is True or the configuration says so.

    Otherwise returns the configured interval in Spark's spelling.
    """
    if once or spark.trigger == AVAILABLE_NOW:
        return AVAILABLE_NOW
    return f"{round(parse_duration(spark.trigger) * 1000)} milliseconds"


def _triggered(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger)
