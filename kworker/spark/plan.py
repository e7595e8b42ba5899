"""The queries of a job: one for each table, none of them started yet."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kworker.clients.admin_handle import AdminHandle
from kworker.clients.offsets import GroupOffsets
from kworker.config.client_properties import table_group
from kworker.config.model import Config, TableSettings
from kworker.errors import Unreachable
from kworker.spark.batch_limits import BatchLimits
from kworker.spark.launch import Launcher
from kworker.spark.progress import TableProgress
from kworker.spark.query import TableQuery
from kworker.spark.reasons import explained
from kworker.spark.rows.frames import results, table_rows
from kworker.spark.rows.transforms import TransformRaised
from kworker.spark.tables.sinks import Sink, sinks


class Planner:
    """Makes the queries of all tables in a session. Owned by the job's main thread.

    `missing` holds, by table format, the error with which the format's jar files could not be
    fetched.
    """

    def __init__(
        self,
        session: SparkSession,
        config: Config,
        admin: AdminHandle,
        launcher: Launcher,
        limits: BatchLimits,
        missing: Mapping[str, Unreachable],
    ) -> None:
        self._session = session
        self._config = config
        self._admin = admin
        self._launcher = launcher
        self._limits = limits
        self._missing = missing

    def plan(self) -> list[TableQuery]:
        """Makes the query of each table, but does not start it.

        If the settings of a table are wrong, only the query of this table is marked as failed.
        """
        spark = self._config.spark
        assert spark is not None
        stream = results(self._session, self._config, spark.batch_records)
        planned = []
        for sink in sinks(spark):
            progress = TableProgress(sink.table.name)
            query = self._query(sink, progress, partial(self._launcher.launch, sink, progress))
            try:
                self._expect_archives(sink.table)
                with suppress(TransformRaised):  # the start of the query calls it again
                    table_rows(stream, sink.table, self._config)
            except ValueError as error:
                query.refuse(f"spark.tables[{progress.name}].{error}")
            planned.append(query)
        return planned

    def _expect_archives(self, table: TableSettings) -> None:
        """Raises ValueError when the jar files for the table's format could not be fetched."""
        if error := self._missing.get(table.format):
            problem = str(error).partition(";")[0]  # Ivy's own words follow
            raise ValueError(
                f"format: {problem}; give the job access to the network once, then start it again"
            )

    def _query(
        self, sink: Sink, progress: TableProgress, launch: Callable[[], StreamingQuery]
    ) -> TableQuery:
        group = GroupOffsets(
            self._admin, table_group(self._config, progress.name), self._config.delivery.results
        )
        explain = partial(explained, sink.table, sink.checkpoint)

        def resize() -> bool:
            return self._limits.resize(sink.table, progress.batch_records, *progress.last)

        def lower() -> str:
            return self._limits.lower({progress.name: progress.batch_records})

        return TableQuery(progress, launch, explain, group, resize, lower)
