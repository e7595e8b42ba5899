"""The writer of a query's batches: writes each to the table once, with a mark in the commit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from kworker.clock import now_ms
from kworker.spark.checkpoints.checkpoint import Positions
from kworker.spark.checkpoints.commit_marks import BatchStep, CommitMark, step
from kworker.spark.rows.columns import IN_PARTITION, LATEST, SEEN, SOURCE_COLUMNS
from kworker.spark.rows.frames import Shape, Span
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.tables.fences import Fence, TableFenced
from kworker.spark.tables.sinks import Sink


class Examine(Protocol):
    """A function that finds the results because of which a batch could not be written."""

    def __call__(self, session: SparkSession, batch: int, span: Span, error: Exception) -> None:
        """Sets aside the results on which the transform fails; just returns if there are none.

        Raises ResultsSetAside when the batch can be written without them, and KworkerError when so
        many fail that the transform must be wrong.
        """


@dataclass(slots=True)
class BatchWriter:
    """Writes the batches of a query to its table. Spark calls it in a thread of the query.

    `shape` turns a batch into rows of the table, after repeated results were dropped from the
    batch. `last_mark` is the entry that kworker made in the metadata of the last batch's commit.
    The query's first batch begins at `start`, or at the beginning of the topic if `start` is None.
    """

    sink: Sink
    fence: Fence
    last_mark: CommitMark | None
    topic_id: str
    shape: Shape
    span_of: Callable[[int], Span]
    start: Positions | None
    examine: Examine | None

    def __call__(self, batch: DataFrame, number: int) -> None:
        session = batch.sparkSession
        query = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query
        begin, end = self.span_of(number)
        match step(self.last_mark, query, number, begin):
            case BatchStep.LEAVE:
                return
            case BatchStep.STOP:
                raise TableFenced
        fence = self.fence
        mark = CommitMark(fence.writer, fence.epoch, query, number, self.topic_id, end, now_ms())
        try:
            self._write(batch, mark)
        except CALL_FAILED as error:
            if self.examine is not None:
                self.examine(session, number, (self.start if begin is None else begin, end), error)
            raise
        self.last_mark = mark

    def _write(self, batch: DataFrame, mark: CommitMark) -> None:
        if self.sink.merge_keys:
            self._merge(batch, mark)
        else:
            self.fence.write(batch, mark, overwrite=self.sink.table.mode == "complete")

    def _merge(self, batch: DataFrame, mark: CommitMark) -> None:
        """Merges the batch by its keys, so that a repeated result changes nothing."""
        keys = self.sink.merge_keys
        update = self.sink.table.mode == "update"
        # Read once, used twice: the merge joins first, and then writes.
        rows = _latest(batch, keys) if update else self.shape(_distinct(batch))
        rows.persist()
        try:
            self.fence.merge(rows, keys, mark, update=update)
        finally:
            rows.unpersist()


def _distinct(batch: DataFrame) -> DataFrame:
    return batch.dropDuplicates(list(SOURCE_COLUMNS))


def _latest(batch: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Reduces a batch to the latest row of each key, since MERGE allows one row for each key.

    The rows of one partition are compared by offset. Then the latest rows of all partitions are
    compared by timestamp. Rows without a source position, such as sums, need no comparison: the
    batch has only one such row for each key.
    """
    if not set(SOURCE_COLUMNS) <= set(batch.columns):
        return batch.dropDuplicates(list(keys))
    of_partition = batch.groupBy(*{*keys, "source_topic", "source_partition"})
    last = of_partition.agg(_last(IN_PARTITION)).select("row.*")
    seen = f.collect_list(f.struct(*SOURCE_COLUMNS[:-1])).alias(SEEN)
    return last.groupBy(*keys).agg(_last(LATEST), seen).select("row.*", SEEN)


def _last(by: Iterable[str]) -> Column:
    return f.max_by(f.struct("*"), f.struct(*by)).alias("row")
