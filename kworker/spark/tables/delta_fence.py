"""A Delta table's fence: its transaction ids keep other jobs out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kworker.clock import now_ms
from kworker.spark.checkpoints.commit_marks import FIRST_WRITE_MARKER, CommitMark, epoch_of
from kworker.spark.checkpoints.folders import Folder
from kworker.spark.checkpoints.hadoop import folder_at
from kworker.spark.rows.columns import merge_statement
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.tables.delta_log import DeltaLog
from kworker.spark.tables.fences import ROWS_VIEW, TableFenced, session_conf
from kworker.spark.tables.simple import is_simple
from kworker.spark.tables.sinks import Sink, table_exists

_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_CREATED_BY_ANOTHER = (
    "DELTA_PATH_EXISTS",
    "MetadataChangedException",
    "ProtocolChangedException",
)


class DeltaFence:
    """A fence made of Delta's transaction ids.

    A commit can name an application and a version; all jobs of a service name the same application
    for a table. Delta skips a commit whose version is not above the application's last version. Of
    two concurrent commits of one application, one fails. So once a job has made an empty commit
    with a higher version, Delta accepts no batch of an earlier job.
    """

    def __init__(self, session: SparkSession, sink: Sink, writer: str) -> None:
        self.writer = writer
        self.epoch = 0
        self.taken = False
        self._owner = ""
        self._session = session
        self._sink = sink
        self._application = f"kworker/{writer}"
        self._log = DeltaLog(session, sink)

    def take(self, owner: str) -> CommitMark | None:
        self._owner = owner
        if not table_exists(self._session, self._sink):
            return None
        version = self._log.last_version(self._application)
        self.epoch = epoch_of(version)
        found = next(self._marks(), None) if version >= 0 else self._creation_mark()
        if found is None or (found.version, found.query) != (max(0, version), owner):
            self._claim(owner)
        self.taken = True
        if version < 0:
            return None  # before the claim there was no mark
        return next((mark for mark in self._marks() if not mark.is_claim), None)

    def _claim(self, owner: str) -> None:
        claim = CommitMark.claim(self.writer, self.epoch + 1, owner, now_ms())
        columns = self._session.table(self._sink.name).schema
        self._add(self._session.createDataFrame([], columns), claim)
        # Delta silently skips this claim if another job's has the same version.
        if next(self._marks(), None) != claim:
            raise TableFenced
        self.epoch = claim.epoch

    @contextmanager
    def creating(self, columns: StructType) -> Iterator[None]:
        claim = CommitMark.claim(self.writer, 0, self._owner, now_ms())
        with session_conf(self._session, {_METADATA: claim.text()}):
            if self._first_write_markers():  # CREATE TABLE refuses a folder that is not empty
                self._save_first(self._session.createDataFrame([], columns))
            yield

    def prepare_first_write(self, columns: StructType) -> bool:
        folder, table = self._folder, self._sink.table
        if folder is None or self._sink.merge_keys or not is_simple(columns, table.partition_by):
            return False
        try:
            if not folder.names(""):
                folder.write(FIRST_WRITE_MARKER, b"")
        except CALL_FAILED:
            return False
        return bool(self._first_write_markers())

    @property
    def _folder(self) -> Folder | None:
        path = self._sink.table.path
        return folder_at(self._session, path) if path else None

    def _first_write_markers(self) -> list[str]:
        """The names of the marker files that `prepare_first_write` has left in the table's folder.

        They are removed when the first write has succeeded.
        """
        folder = self._folder
        try:
            names = folder.names("") if folder else []
        except CALL_FAILED:
            return []
        return [name for name in names if name.startswith(FIRST_WRITE_MARKER)]

    def _creation_mark(self) -> CommitMark | None:
        """The entry that this writer made in the table's first commit; None if there is none.

        If the first commit only created the table, no batch belongs to the entry.
        """
        first = self._log.commit(0)
        return None if first is None else CommitMark.parse(first.metadata, self.writer)

    def _marks(self) -> Iterator[CommitMark]:
        """The entries that this writer made in commits of the table, newest first.

        Only reads the commits that Delta has not yet removed from its log.
        """
        marks = (CommitMark.parse(commit.metadata, self.writer) for commit in self._log.commits())
        return (mark for mark in marks if mark is not None)

    def write(self, rows: DataFrame, mark: CommitMark, *, overwrite: bool = False) -> None:
        if self.taken:
            self._add(rows, mark, overwrite=overwrite)
        else:
            self._create(rows, mark)

    def _add(self, rows: DataFrame, mark: CommitMark, *, overwrite: bool = False) -> None:
        table = self._sink.table
        writer = rows.write.format("delta").mode("overwrite" if overwrite else "append")
        with self._committing(rows.sparkSession, mark):
            if table.table:
                writer.saveAsTable(table.table)
            else:
                writer.save(table.path)

    def _create(self, rows: DataFrame, mark: CommitMark) -> None:
        """Creates the table with these rows. If another job does so first, raises TableFenced."""
        with self._committing(rows.sparkSession, mark):
            self._save_first(rows)
        # Delta silently skips this commit if another job's of the same version came first.
        if next(self._marks(), None) != mark:
            raise TableFenced
        self.taken = True

    def _save_first(self, rows: DataFrame) -> None:
        table = self._sink.table
        writer = rows.write.format("delta").mode("errorifexists").partitionBy(*table.partition_by)
        try:
            writer.save(table.path)
        except CALL_FAILED as error:
            if any(name in str(error) for name in _CREATED_BY_ANOTHER):
                raise TableFenced from error
            raise
        folder = self._folder
        with suppress(*CALL_FAILED):
            for name in self._first_write_markers():
                if folder is not None:
                    folder.delete(name)

    def merge(
        self, rows: DataFrame, keys: Sequence[str], mark: CommitMark, *, update: bool
    ) -> None:
        rows.createOrReplaceTempView(ROWS_VIEW)
        statement = merge_statement(self._sink.name, ROWS_VIEW, rows.columns, keys, update=update)
        with self._committing(rows.sparkSession, mark):
            rows.sparkSession.sql(statement)

    @contextmanager
    def _committing(self, session: SparkSession, mark: CommitMark) -> Iterator[None]:
        settings = {
            "spark.databricks.delta.write.txnAppId": self._application,
            "spark.databricks.delta.write.txnVersion": str(mark.version),
            _METADATA: mark.text(),
        }
        try:
            with session_conf(session, settings):
                yield
        except CALL_FAILED as error:
            if "ConcurrentTransactionException" in str(error):
                raise TableFenced from error
            raise
        # Delta silently skips a commit below the table's version.
        if self._log.last_version(self._application) == mark.version:
            return
        # A catalog that orders commits does not write a file for each at once.
        if self._log.version_of_delta(self._application) != mark.version:
            raise TableFenced
