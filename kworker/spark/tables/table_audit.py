"""The audit of a table: compares its rows with the results in the topic, in Spark."""

from collections.abc import Callable, Iterator

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from kworker.config.model import Config, TableSettings
from kworker.core.headers import Source
from kworker.errors import KworkerError
from kworker.spark.reasons import reason
from kworker.spark.rows.columns import LATEST_STAMP_MS, SOURCE_COLUMNS
from kworker.spark.rows.frames import records_between, results_of
from kworker.spark.session.archives import archives
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.session.session import close_session, open_session
from kworker.spark.sql import literal
from kworker.spark.tables.audited_table import AuditedTable, RowFault, TableAuditScope
from kworker.spark.tables.sinks import Sink, sinks

_POSITION = SOURCE_COLUMNS[:-1]
_PLACE = (*_POSITION, "millis")
_MILLIS_OF_RESULT = f"CASE WHEN millis BETWEEN 0 AND {LATEST_STAMP_MS} THEN millis ELSE -1 END"
_NO_ROWS = (
    "source_topic STRING, source_partition INT, source_offset BIGINT, source_index INT,"
    " source_timestamp TIMESTAMP"
)
_MILLIS_OF_ROW = "coalesce(unix_millis(source_timestamp), -1)"
"""SQL for the source's timestamp. Rows hold none that Spark's calendar cannot name."""


def refusal(table: TableSettings) -> str:
    """The reason why the rows of this table cannot be audited; "" if they can."""
    if table.transform:
        return "its transform makes the rows, and they need not have a source position"
    if table.mode != "append":
        return f'with mode = "{table.mode}" it does not keep a row for each result'
    return ""


def audit_tables(
    config: Config, scope: TableAuditScope, progress: Callable[[str], None]
) -> Iterator[AuditedTable]:
    """Audits the configured tables one by one, in a single Spark session made for the audit.

    Blocks while Spark reads the topic and a table. Raises KworkerError if Spark fails.
    """
    spark = config.spark
    if spark is None:
        return
    if all(map(refusal, spark.tables)):
        yield from (AuditedTable(table.name, refusal(table)) for table in spark.tables)
        return
    try:
        session = open_session(config, archives(spark.tables, progress=progress))
    except CALL_FAILED as error:
        raise KworkerError(f"Spark does not start: {reason(error)}") from error
    try:
        for sink in sinks(spark):
            progress(f"table {sink.table.name}")
            yield _audited(session, config, sink, scope)
    except CALL_FAILED as error:
        raise KworkerError(f"audit: Spark cannot read the tables: {reason(error)}") from error
    finally:
        close_session(session, config)


def _audited(
    session: SparkSession, config: Config, sink: Sink, scope: TableAuditScope
) -> AuditedTable:
    name = sink.table.name
    if why := refusal(sink.table):
        return AuditedTable(name, why)
    rows = _rows(session, sink, scope)
    results = _results(session, config, sink.table, scope)
    compared = results.join(rows, list(_PLACE), "full_outer")
    faulty = compared.selectExpr("*", _fault(sink.table)).where("fault IS NOT NULL").persist()
    listed = faulty.where("fault <> 'unexplained'").orderBy(*_PLACE).limit(scope.faults_max)
    return AuditedTable(
        name,
        rows=rows.selectExpr("coalesce(sum(rows), 0) AS total").collect()[0]["total"],
        counts={row["fault"]: row["count"] for row in faulty.groupBy("fault").count().collect()},
        faults=[
            RowFault(row["fault"], _source(row), row["source_index"], row["rows"] or 0)
            for row in listed.collect()
        ],
        unexplained=map(_source, faulty.where("fault = 'unexplained'").toLocalIterator()),
    )


def _fault(table: TableSettings) -> str:
    """SQL for the column `fault`, computed from the numbers of results and rows of one place.

    The fault is `missing`, `repeated` or `unexplained` (rows without a result); NULL stands for
    none. A place (`_PLACE`) is a source position, a result's index, and the source's timestamp.
    """
    rows_max = "results" if table.replays else "1"  # a replay's results are rows of their own
    return (
        "CASE WHEN rows IS NULL THEN IF(written, 'missing', NULL)"
        " WHEN results IS NULL THEN 'unexplained'"
        f" WHEN rows > {rows_max} THEN 'repeated' END AS fault"
    )


def _results(
    session: SparkSession, config: Config, table: TableSettings, scope: TableAuditScope
) -> DataFrame:
    """Counts the results in the topic for each source position, result index and timestamp.

    The column `results` has this count. The column `written` is True if the table must have a row
    for these results.
    """
    begins = {number: span.start for number, span in scope.results.items()}
    ends = {number: span.stop for number, span in scope.results.items()}
    found = results_of(records_between(session, config, (begins, ends)), table)
    positions = scope.positions.get(table.name, {})
    cases = "".join(f" WHEN {number} THEN {at}" for number, at in sorted(positions.items()))
    reached = f"CASE partition{cases} ELSE 0 END" if cases else "0"
    placed = found.selectExpr(
        *_POSITION, f"{_MILLIS_OF_RESULT} AS millis", f"offset < {reached} AS written"
    )
    counts = f.count("*").alias("results"), f.bool_or("written").alias("written")
    return _in_scope(placed, scope).groupBy(*_PLACE).agg(*counts)


def _rows(session: SparkSession, sink: Sink, scope: TableAuditScope) -> DataFrame:
    """Counts the table's rows for each source position, result index and timestamp.

    If the table does not exist, the data frame is empty.
    """
    try:
        if sink.table.format == "parquet":
            table = session.read.parquet(sink.table.path)
        else:
            table = session.table(sink.name)
    except AnalysisException:
        table = session.createDataFrame([], _NO_ROWS)
    placed = table.selectExpr(*_POSITION, f"{_MILLIS_OF_ROW} AS millis")
    return _in_scope(placed, scope).groupBy(*_PLACE).agg(f.count("*").alias("rows"))


def _in_scope(placed: DataFrame, scope: TableAuditScope) -> DataFrame:
    within = [f"source_topic IN ({', '.join(map(literal, scope.sources))})"]
    if scope.time_range.from_ms is not None:
        within.append(f"millis >= {scope.time_range.from_ms}")
    if scope.time_range.to_ms is not None:
        within.append(f"millis < {scope.time_range.to_ms}")
    return placed.where(" AND ".join(within))


def _source(row: Row) -> Source:
    return Source(*(row[name] for name in (*_POSITION[:-1], "millis")))
