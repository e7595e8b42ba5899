"""Compaction: merges a table's many small files into few, by a command of the table's format."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from kworker.config.model import Config, TableSettings
from kworker.errors import KworkerError
from kworker.spark.checkpoints.lease import Lease
from kworker.spark.reasons import reason
from kworker.spark.session.archives import archives
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.session.session import close_session, open_session
from kworker.spark.sql import literal
from kworker.spark.tables.sinks import Sink, sinks


@dataclass(frozen=True, slots=True)
class Compacted:
    """The numbers of data files that a compaction took out of a table and put into it.

    The files that it took out stay on the disk, for readers and for time travel.
    """

    table: str
    removed: int
    added: int


def refusal(table: TableSettings) -> str:
    """The reason why this table cannot be compacted; "" if it can."""
    if table.format == "parquet":
        return "Parquet has no transaction to replace files in; Delta and Iceberg have"
    if table.mode == "complete":
        return "each batch writes it anew, so there is nothing to compact"
    return ""


def compact(
    config: Config,
    tables: Collection[str],
    progress: Callable[[str], None],
    lease: Lease | None = None,
) -> Iterator[Compacted]:
    """Compacts the named tables, one after the other, in a Spark session of its own.

    Blocks while files are written. The session's JVM also holds `lease`, the lock of the
    checkpoints. Raises KworkerError if Spark fails; tables that are done stay compacted.
    """
    spark = config.spark
    assert spark is not None
    try:
        session = open_session(config, archives(spark.tables, progress=progress), lease)
    except CALL_FAILED as error:
        raise KworkerError(f"Spark does not start: {reason(error)}") from error
    try:
        for sink in sinks(spark):
            if sink.table.name in tables:
                progress(f"{sink.table.name}: compacting")
                yield _compacted(session, sink)
    finally:
        close_session(session, config)


def _compacted(session: SparkSession, sink: Sink) -> Compacted:
    try:
        found = session.sql(_statement(session, sink)).first()
    except CALL_FAILED as error:
        raise KworkerError(
            f"table {sink.table.name} cannot be compacted: {reason(error)}"
        ) from error
    assert found is not None
    if sink.table.format == "delta":
        metrics = found["metrics"]
        return Compacted(sink.table.name, metrics["numFilesRemoved"], metrics["numFilesAdded"])
    removed, added = found["rewritten_data_files_count"], found["added_data_files_count"]
    return Compacted(sink.table.name, removed, added)


def _statement(session: SparkSession, sink: Sink) -> str:
    if sink.table.format == "delta":
        return f"OPTIMIZE {sink.name}"
    catalog, _, name = sink.name.partition(".")
    if session.conf.get(f"spark.sql.catalog.{catalog}", None) is None:
        catalog, name = "spark_catalog", sink.name
    return f"CALL {catalog}.system.rewrite_data_files(table => {literal(name)})"
