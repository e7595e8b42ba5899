"""The fence of an Iceberg table: a commit fails if another job has committed meanwhile."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from kworker.clock import now_ms
from kworker.spark.checkpoints.commit_marks import CommitMark
from kworker.spark.rows.columns import merge_statement
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.tables.fences import ROWS_VIEW, TableFenced, session_conf
from kworker.spark.tables.sinks import Sink, table_exists

_PROPERTY = "kworker"  # of a snapshot; names are in lower case
_ATTEMPTS = 5


class IcebergFence:
    """A fence made of Iceberg's snapshots.

    A commit names the last snapshot that this job has seen, and fails if rows were added later. But
    a MERGE that updates rows cannot name a snapshot: it only fails if rows were added after the
    MERGE itself began to read. So just before a MERGE, this job checks that no other job has
    written a batch. If this job is paused between check and MERGE, it may replace another job's
    rows by older rows. Then the other job's next commit raises TableFenced.
    """

    def __init__(self, session: SparkSession, sink: Sink, writer: str) -> None:
        self.writer = writer
        self.epoch = 0
        self.taken = False
        self._session = session
        self._sink = sink
        self._name = sink.name
        self._last_seen = _Snapshot(None, None)

    def take(self, owner: str) -> CommitMark | None:
        if not table_exists(self._session, self._sink):
            return None
        self._last_seen = self._latest()
        if self._last_seen.snapshot is None:
            self._write_first_snapshot(owner)
        last = self._last_seen.mark
        goes_on = last is not None and last.query == owner
        self.epoch = (0 if last is None else last.epoch) + (not goes_on)
        self.taken = True
        return last

    def creating(self, _columns: StructType, /) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare_first_write(self, _columns: StructType, /) -> bool:
        return False  # a commit is only checked against a snapshot before it

    def _write_first_snapshot(self, owner: str) -> None:
        """Writes an empty snapshot, against which the first commit is checked."""
        claim = CommitMark.claim(self.writer, 0, owner, now_ms())
        columns = self._session.table(self._name).schema
        self._overwrite(self._session.createDataFrame([], columns), claim)
        snapshot = self._load().currentSnapshot()
        if snapshot.parentId() is not None:
            raise TableFenced
        self._last_seen = _Snapshot(snapshot.snapshotId(), None)

    def _load(self) -> Any:
        jvm: Any = self._session._jvm
        load = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
        table = load(self._session._jsparkSession, self._name)
        table.refresh()
        return table

    def _latest(self) -> "_Snapshot":
        table = self._load()
        snapshot = table.currentSnapshot()
        number = None if snapshot is None else snapshot.snapshotId()
        while snapshot is not None:
            mark = CommitMark.parse(snapshot.summary().get(_PROPERTY), self.writer)
            if mark is not None and not mark.is_claim:
                return _Snapshot(number, mark)
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return _Snapshot(number, None)

    def write(self, rows: DataFrame, mark: CommitMark, *, overwrite: bool = False) -> None:
        self._commit(lambda: self._overwrite(rows, mark, overwrite=overwrite), mark)

    def _overwrite(self, rows: DataFrame, mark: CommitMark, *, overwrite: bool = False) -> None:
        writer = rows.writeTo(self._name).option("fanout-enabled", "true")
        writer = writer.option(f"snapshot-property.{_PROPERTY}", mark.text())
        if self._last_seen.snapshot is not None:
            writer = writer.option("isolation-level", "serializable")
            writer = writer.option("validate-from-snapshot-id", str(self._last_seen.snapshot))
        writer.overwrite(f.lit(overwrite))

    def merge(
        self, rows: DataFrame, keys: Sequence[str], mark: CommitMark, *, update: bool
    ) -> None:
        session = rows.sparkSession

        def add() -> None:
            # A MERGE that only inserts is an append, which Iceberg does not check.
            session.sql(f"REFRESH TABLE {self._name}")
            there = session.table(self._name).select(*(f.col(key).alias(f"_{key}") for key in keys))
            same = [rows[key].eqNullSafe(there[f"_{key}"]) for key in keys]
            self._overwrite(rows.join(there, same, "left_anti"), mark)

        def replace() -> None:
            if self._latest().mark != self._last_seen.mark:
                raise TableFenced
            rows.createOrReplaceTempView(ROWS_VIEW)
            settings = {f"spark.sql.iceberg.snapshot-property.{_PROPERTY}": mark.text()}
            with session_conf(session, settings):
                session.sql(merge_statement(self._name, ROWS_VIEW, rows.columns, keys, update=True))

        self._commit(replace if update else add, mark)

    def _commit(self, action: Callable[[], None], mark: CommitMark) -> None:
        """Runs a commit; tries again if a writer that is no kworker job has committed first.

        Raises TableFenced if another kworker job has committed first, or if all tries fail.
        """
        for attempt in range(_ATTEMPTS):
            try:
                action()
                break
            except CALL_FAILED as error:
                if "ValidationException" not in str(error):
                    raise
                latest = self._latest()
                if latest.mark != self._last_seen.mark:
                    raise TableFenced from error
                if attempt == _ATTEMPTS - 1:
                    raise TableFenced(
                        "a batch could not be committed, since other writers commit to the table"
                        " all the time; it is tried again"
                    ) from error
                self._last_seen = latest
        latest = self._latest()
        if latest.mark != mark:
            raise TableFenced
        self._last_seen = latest


class _Snapshot(NamedTuple):
    """An Iceberg table's current snapshot, and the `CommitMark` from the last batch's commit."""

    snapshot: int | None  # None before the first write
    mark: CommitMark | None  # None, too, if the snapshots with it have expired
