"""The start of a table's query: its checkpoint is checked, its table created, its stream begun."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import structlog
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from kworker.clients.offsets import TopicWatch
from kworker.config.model import Config, TableSettings
from kworker.errors import ConfigError
from kworker.spark.batch_limits import BatchLimits, Range, pending_ranges
from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.checkpoints.checkpoint import (
    Checkpoint,
    Positions,
    query_of,
    range_of,
    remove_plan,
)
from kworker.spark.checkpoints.commit_marks import CommitMark
from kworker.spark.checkpoints.folders import Folder, LocalFolder
from kworker.spark.checkpoints.guard import Guard, ResultsTopic, next_step
from kworker.spark.checkpoints.hadoop import folder_at
from kworker.spark.checkpoints.set_aside import read_set_aside, skipped_offsets
from kworker.spark.progress import TableProgress
from kworker.spark.reasons import is_mistake, reason
from kworker.spark.rows.columns import Repartitioned
from kworker.spark.rows.frames import TableRows, keeps_state, results, table_rows
from kworker.spark.rows.kafka_options import starting_offsets
from kworker.spark.tables.batches import BatchWriter
from kworker.spark.tables.delta_fence import DeltaFence
from kworker.spark.tables.examiner import Examiner
from kworker.spark.tables.fences import Fence, TableFenced
from kworker.spark.tables.file_fence import FileFence
from kworker.spark.tables.iceberg_fence import IcebergFence
from kworker.spark.tables.sinks import Sink, prepare_table, start_query

_LOG = structlog.get_logger()

_JOB = uuid.uuid4().hex
"""The id of this process, as the owner of a table whose query has no id yet."""


class Launcher:
    """Starts the streaming queries of a Spark session. Owned by the job's main thread."""

    def __init__(
        self,
        session: SparkSession,
        config: Config,
        watch: TopicWatch,
        trigger: str,
        limits: BatchLimits,
    ) -> None:
        self._session = session
        self._config = config
        self._watch = watch
        self._trigger = trigger
        self._limits = limits
        self._examiners: dict[str, Examiner] = {}
        self._warned: set[str] = set()  # tables that count a repeated result again

    def launch(self, sink: Sink, progress: TableProgress) -> StreamingQuery:
        """Starts a table's query; copies batch and positions from its checkpoint to `progress`.

        Raises Damaged for a query that must not start, and ConfigError for an error that only a
        change of the configuration can repair. Raises TransformRaised or Spark's errors if a later
        start may succeed.
        """
        try:
            return self._launch(sink, progress)
        except Damaged as error:
            if not error.begin:
                raise
            what_to_do = next_step(sink.table, error.begin)
            raise Damaged(f"{error}: {what_to_do}", error.begin) from error
        except AnalysisException as error:
            if not is_mistake(error):
                raise
            raise ConfigError(f"{_key(sink.table)}: {reason(error)}") from error
        except Repartitioned as error:
            raise ConfigError(_changed(sink.table, "partition_by", str(error))) from error
        except ValueError as error:
            part = "transform" if sink.table.transform else "schema"
            raise ConfigError(_changed(sink.table, part, str(error))) from error

    def _launch(self, sink: Sink, progress: TableProgress) -> StreamingQuery:
        table = sink.table
        topic = ResultsTopic(self._config.delivery.results, self._watch.topic_id)
        folder = folder_at(self._session, sink.checkpoint)
        fence = fence_of(self._session, sink, f"{self._config.name}/{table.name}")
        # A checkpoint that several hosts share does not say which of them continues it.
        query = query_of(folder) if isinstance(folder, LocalFolder) else ""
        owner = query or _JOB
        last_mark = fence.take(owner)
        guard = Guard(table, folder)

        def stateful() -> bool:
            return keeps_state(self._rows(table, None, 1).stream)

        query_start = guard.admit(topic, progress.positions, last_mark, stateful)
        found = query_start.checkpoint
        progress.batch = None if found is None else found.finished
        if query_start.start is not None:
            progress.positions = dict(query_start.start)
        if found is not None and found.complete:
            progress.positions.update(found.reached)
        pinned = found if found is not None and not found.complete else None
        positions = pinned.begun if pinned and pinned.begun else progress.positions
        progress.batch_records = records_max = self._records_max(table, positions, pinned)
        aside = read_set_aside(folder, found.planned if found is not None else 0)
        progress.aside = aside.number
        rows = self._rows(
            table, query_start.start, records_max, skipped_offsets(aside.recent, positions)
        )
        self._warn_of_repeats(table, rows)
        new = not fence.taken and not query_start.wrote
        if not (new and self._has_results(positions) and fence.prepare_first_write(rows.schema)):
            self._prepare_table(sink, fence, owner, rows.schema, wrote=query_start.wrote)
        if pinned:
            self._make_smaller(folder, pinned, records_max, last_mark, sink)
        at = partial(range_of, folder, topic=topic.name)
        begun = query_start.start if found is None or found.planned else found.begun
        examine = self._examiner(table, folder, progress, rows)
        write = BatchWriter(sink, fence, last_mark, topic.id, rows.shape, at, begun, examine)
        return start_query(rows.stream, sink, self._trigger, write)

    def _records_max(
        self, table: TableSettings, positions: Positions, pinned: Checkpoint | None
    ) -> int:
        """The highest number of records for the next batch.

        It follows from the sizes of the results that wait, and of those in the planned batch
        `pinned`, if there is one.
        """
        waiting = self._limits.records_max(table, pending_ranges(positions, self._watch.ends))
        return min(waiting, self._limits.records_max(table, _pinned(pinned))) if pinned else waiting

    def _prepare_table(
        self, sink: Sink, fence: Fence, owner: str, columns: StructType, *, wrote: bool
    ) -> None:
        """Creates the table, or adds its new columns.

        Then takes the fence of a new table: from then on, no other job can write to that table.
        Raises TableFenced if another job has written to the new table first, and Damaged if the
        table is missing although batches were written to it before (`wrote`).
        """
        with nullcontext() if fence.taken else fence.creating(columns):
            prepare_table(self._session, sink, columns, wrote=wrote)
        if not fence.taken and fence.take(owner) is not None:
            raise TableFenced  # another job has created it meanwhile, and written to it

    def _has_results(self, positions: Positions) -> bool:
        """True if results certainly follow these positions, so that the query writes a batch."""
        begins, ends = self._watch.begins(), self._watch.ends
        return any(max(begins[p], positions.get(p, 0)) < ends[p] for p in begins)

    def _examiner(
        self, table: TableSettings, folder: Folder, progress: TableProgress, rows: TableRows
    ) -> Examiner | None:
        """Returns the object that finds the results on which the table's transform fails.

        None if the table has no transform, or if its rows may depend on earlier results.
        """
        if not table.transform or keeps_state(rows.stream):
            return None
        if table.name not in self._examiners:
            self._examiners[table.name] = Examiner(table, self._config, folder, progress)
        return self._examiners[table.name]

    def _warn_of_repeats(self, table: TableSettings, rows: TableRows) -> None:
        if table.name in self._warned or self._config.delivery.guarantee != "at-least-once":
            return
        if rows.counts_again:
            self._warned.add(table.name)
            _LOG.warning(
                "a crash may publish a result twice, and this table would then count it twice:"
                ' set dedupe = true for the table, or delivery.guarantee = "exactly-once"',
                table=table.name,
            )

    def _make_smaller(
        self,
        folder: Folder,
        pinned: Checkpoint,
        records_max: int,
        last_mark: CommitMark | None,
        sink: Sink,
    ) -> None:
        """Removes the plan of a too large, unwritten batch; Spark then plans a smaller one."""
        records = sum(end - begin for begin, end in _pinned(pinned).values())
        if records <= 2 * records_max:
            return
        if any(query.id == pinned.query for query in self._session.streams.active):
            return  # it did not stop in time, and may be writing that batch
        if last_mark is not None and (last_mark.query, last_mark.batch) == (
            pinned.query,
            pinned.planned,
        ):
            return  # it is in the table, and is skipped when Spark repeats it
        remove_plan(folder, pinned.planned)
        _LOG.warning(
            "the batch that Spark has planned exceeds the table's present batch limit; Spark"
            " plans it again with fewer records",
            table=sink.table.name,
            records=records,
            records_limit=records_max,
        )

    def _rows(
        self,
        table: TableSettings,
        start: Positions | None,
        records_max: int,
        without: Mapping[int, Sequence[int]] | None = None,
    ) -> TableRows:
        topic = self._config.delivery.results
        begin = "earliest"
        if start is not None:
            begin = starting_offsets(topic, start, self._watch.ends)
        stream = results(self._session, self._config, records_max, begin, without)
        return table_rows(stream, table, self._config)


def fence_of(session: SparkSession, sink: Sink, writer: str) -> Fence:
    """The fence for the table's format. A fence lets only one job write to a table."""
    match sink.table.format:
        case "delta":
            return DeltaFence(session, sink, writer)
        case "iceberg":
            return IcebergFence(session, sink, writer)
    return FileFence(session, sink, writer)


def _pinned(checkpoint: Checkpoint) -> dict[int, Range]:
    """The range of offsets in the planned batch, by partition."""
    return {
        part: (min(checkpoint.begun.get(part, 0), end), end)
        for part, end in checkpoint.reached.items()
    }


def _key(table: TableSettings) -> str:
    return f"spark.tables[{table.name}]"


def _changed(table: TableSettings, part: str, how: str) -> str:
    return (
        f"{_key(table)}.{part}: {how}: change it back, or name another path, and fill that with"
        f" kworker spark reset --table {table.name} --from earliest"
    )
