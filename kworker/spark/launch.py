"""How a table's query starts: its checkpoint is examined, its table made, then it begins."""

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kworker.clients.offsets import TopicWatch
from kworker.config import Config, Table
from kworker.errors import ConfigError
from kworker.spark.checkpoint import Damaged, Positions
from kworker.spark.frames import TableRows, results, table_rows
from kworker.spark.guard import Guard, Topic, next_step
from kworker.spark.kafka_options import starting_offsets
from kworker.spark.progress import TableProgress
from kworker.spark.reasons import reason
from kworker.spark.sinks import Sink, prepare, start
from kworker.spark.tables import Repartitioned


class Launcher:
    """Starts queries in one session. Owned by the job's main thread."""

    def __init__(
        self, session: SparkSession, config: Config, watch: TopicWatch, trigger: str
    ) -> None:
        self._session = session
        self._config = config
        self._watch = watch
        self._trigger = trigger

    def launch(self, sink: Sink, rows: TableRows, progress: TableProgress) -> StreamingQuery:
        """The running query. Sets the positions that its checkpoint knows better than its group.

        Raises Damaged for a query that must not start, ConfigError for what only a change of
        the file can mend, and Spark's errors for what may pass.
        """
        try:
            return self._launch(sink, rows, progress)
        except Damaged as error:
            if not error.begin:
                raise
            step = next_step(sink.table, error.begin)
            raise Damaged(f"{error}: {step}", error.begin) from error
        except AnalysisException as error:
            raise ConfigError(f"{_key(sink.table)}: {reason(error)}") from error
        except Repartitioned as error:
            raise ConfigError(_changed(sink.table, "partition_by", str(error))) from error
        except ValueError as error:
            part = "transform" if sink.table.transform else "schema"
            raise ConfigError(_changed(sink.table, part, str(error))) from error

    def _launch(self, sink: Sink, rows: TableRows, progress: TableProgress) -> StreamingQuery:
        topic = Topic(self._config.delivery.results, self._watch.topic_id)
        admitted = Guard(sink.table, sink.checkpoint).admit(topic, progress.positions)
        if admitted.start is not None:
            rows = self._rows_from(admitted.start, sink.table)
            progress.positions = dict(admitted.start)
        if admitted.checkpoint is not None and admitted.checkpoint.complete:
            progress.positions.update(admitted.checkpoint.reached)
        prepare(self._session, sink, rows.schema, wrote=admitted.wrote)
        return start(rows.stream, sink, self._trigger, rows.shape)

    def _rows_from(self, positions: Positions, table: Table) -> TableRows:
        topic = self._config.delivery.results
        starting = starting_offsets(topic, positions, self._watch.ends)
        return table_rows(results(self._session, self._config, starting), table, self._config)


def _key(table: Table) -> str:
    return f"spark.tables[{table.name}]"


def _changed(table: Table, part: str, how: str) -> str:
    return (
        f"{_key(table)}.{part}: {how}: change it back, or name another path, and fill that with"
        f" kworker spark reset --table {table.name} --from earliest"
    )
