"""A table's own word on how far it is, and on whose commits it takes: of Delta and Iceberg."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from kworker.clock import now_ms
from kworker.errors import KworkerError
from kworker.spark.checkpoints.commit_marks import MAKING, Mark, epoch_of
from kworker.spark.checkpoints.folders import Folder
from kworker.spark.checkpoints.hadoop import folder_at
from kworker.spark.rows.columns import merge_statement
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.tables.delta_log import DeltaLog
from kworker.spark.tables.simple import is_simple
from kworker.spark.tables.sinks import Sink, is_there

_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_VIEW = "kworker_rows"  # in a session that the batches of one query have for themselves


class TableFenced(KworkerError):
    """Another job has written to the table since this one looked; its batch is not there."""

    def __init__(self, why: str = "another job has written to this table meanwhile") -> None:
        super().__init__(why)


class Fence(Protocol):
    """A table as its one writer sees it: each commit has a mark, and those of others are refused.

    Owned by one query: by who starts it, then by the thread that runs its batches.
    """

    writer: str
    epoch: int  # of the commits from now on
    taken: bool  # false before there is a table

    def take(self, owner: str) -> Mark | None:
        """The last mark of a batch, to which no other job adds from now on; None for none yet.

        `owner` is the query that wrote before and goes on, or else this job. Raises Fenced where
        another takes the table at the same moment.
        """

    def making(self, columns: StructType, /) -> AbstractContextManager[None]:
        """While this job makes a table that was not there to be taken: so it has that one."""

    def begins_to_make(self, columns: StructType, /) -> bool:
        """Whether its first write will make the table that is not there, with what it adds."""

    def write(self, rows: DataFrame, mark: Mark, *, anew: bool = False) -> None:
        """Adds the rows, or has them take the place of all others. Raises Fenced."""

    def merge(self, rows: DataFrame, keys: Sequence[str], mark: Mark, *, update: bool) -> None:
        """Adds the rows whose keys the table lacks; `update` replaces the others. Raises Fenced."""


_MADE_BY_ANOTHER = (
    "DELTA_PATH_EXISTS",
    "MetadataChangedException",
    "ProtocolChangedException",
)


class DeltaFence:
    """By Delta's transaction ids: an application's versions only grow, or are left out.

    Of two transactions at once of one application, one fails. So after an empty commit of a
    higher version, no other job's batch can come.
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

    def take(self, owner: str) -> Mark | None:
        self._owner = owner
        if not is_there(self._session, self._sink):
            return None
        version = self._log.version(self._application)
        self.epoch = epoch_of(version)
        found = next(self._marks(), None) if version >= 0 else self._maker()
        if found is None or (found.version, found.query) != (max(0, version), owner):
            self._claim(owner)
        self.taken = True
        if version < 0:
            return None  # as it was before the claim
        return next((mark for mark in self._marks() if not mark.is_claim), None)

    def _claim(self, owner: str) -> None:
        claim = Mark.claim(self.writer, self.epoch + 1, owner, now_ms())
        columns = self._session.table(self._sink.name).schema
        self._add(self._session.createDataFrame([], columns), claim)
        # Another's of the same version would have it left out, too.
        if next(self._marks(), None) != claim:
            raise TableFenced
        self.epoch = claim.epoch

    @contextmanager
    def making(self, columns: StructType) -> Iterator[None]:
        claim = Mark.claim(self.writer, 0, self._owner, now_ms())
        with conf(self._session, {_METADATA: claim.text()}):
            if self._leftovers():  # CREATE TABLE refuses a folder that is not empty
                self._save_first(self._session.createDataFrame([], columns))
            yield

    def begins_to_make(self, columns: StructType) -> bool:
        folder, table = self._folder, self._sink.table
        if folder is None or self._sink.merge_keys or not is_simple(columns, table.partition_by):
            return False
        try:
            if not folder.names(""):
                folder.write(MAKING, b"")
        except CALL_FAILED:
            return False
        return bool(self._leftovers())

    @property
    def _folder(self) -> Folder | None:
        path = self._sink.table.path
        return folder_at(self._session, path) if path else None

    def _leftovers(self) -> list[str]:
        """The marks of a first write that was begun; one of them may be half made."""
        folder = self._folder
        try:
            names = folder.names("") if folder else []
        except CALL_FAILED:
            return []
        return [name for name in names if name.startswith(MAKING)]

    def _maker(self) -> Mark | None:
        """Who has made the table, which is a claim while nobody has written to it."""
        first = self._log.commit(0)
        return None if first is None else Mark.parse(first.metadata, self.writer)

    def _marks(self) -> Iterator[Mark]:
        """Of this writer, from the last; without what the table's history has forgotten."""
        marks = (Mark.parse(commit.metadata, self.writer) for commit in self._log.commits())
        return (mark for mark in marks if mark is not None)

    def write(self, rows: DataFrame, mark: Mark, *, anew: bool = False) -> None:
        if self.taken:
            self._add(rows, mark, anew=anew)
        else:
            self._make(rows, mark)

    def _add(self, rows: DataFrame, mark: Mark, *, anew: bool = False) -> None:
        table = self._sink.table
        writer = rows.write.format("delta").mode("overwrite" if anew else "append")
        with self._committing(rows.sparkSession, mark):
            if table.table:
                writer.saveAsTable(table.table)
            else:
                writer.save(table.path)

    def _make(self, rows: DataFrame, mark: Mark) -> None:
        """With these rows: of two jobs that do so at once, one makes it."""
        with self._committing(rows.sparkSession, mark):
            self._save_first(rows)
        # Where another's of the same version came first, this one was left out without a word.
        if next(self._marks(), None) != mark:
            raise TableFenced
        self.taken = True

    def _save_first(self, rows: DataFrame) -> None:
        table = self._sink.table
        writer = rows.write.format("delta").mode("errorifexists").partitionBy(*table.partition_by)
        try:
            writer.save(table.path)
        except CALL_FAILED as error:
            if any(name in str(error) for name in _MADE_BY_ANOTHER):
                raise TableFenced from error
            raise
        folder = self._folder
        with suppress(*CALL_FAILED):
            for name in self._leftovers():
                if folder is not None:
                    folder.delete(name)

    def merge(self, rows: DataFrame, keys: Sequence[str], mark: Mark, *, update: bool) -> None:
        rows.createOrReplaceTempView(_VIEW)
        statement = merge_statement(self._sink.name, _VIEW, rows.columns, keys, update=update)
        with self._committing(rows.sparkSession, mark):
            rows.sparkSession.sql(statement)

    @contextmanager
    def _committing(self, session: SparkSession, mark: Mark) -> Iterator[None]:
        told = {
            "spark.databricks.delta.write.txnAppId": self._application,
            "spark.databricks.delta.write.txnVersion": str(mark.version),
            _METADATA: mark.text(),
        }
        try:
            with conf(session, told):
                yield
        except CALL_FAILED as error:
            if "ConcurrentTransactionException" in str(error):
                raise TableFenced from error
            raise
        # What is below the table's own version was left out, without a word.
        if self._log.version(self._application) == mark.version:
            return
        # Not each commit is a file of its own at once, where a catalog orders them.
        if self._log.remembered(self._application) != mark.version:
            raise TableFenced


@contextmanager
def conf(session: SparkSession, told: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for a while."""
    for name, value in told.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in told:
            session.conf.unset(name)


_PROPERTY = "kworker"  # of a snapshot; names are in lower case
_ATTEMPTS = 5


class IcebergFence:
    """By snapshots: a commit fails where rows were added since the one that it goes on from.

    An update looks just before instead, since what it compares with is its own: of a job that
    slept in between it may replace rows by older ones, and the next commit finds that.
    """

    def __init__(self, session: SparkSession, sink: Sink, writer: str) -> None:
        self.writer = writer
        self.epoch = 0
        self.taken = False
        self._session = session
        self._sink = sink
        self._name = sink.name
        self._held = _Seen(None, None)

    def take(self, owner: str) -> Mark | None:
        if not is_there(self._session, self._sink):
            return None
        self._held = self._look()
        if self._held.snapshot is None:
            self._begin(owner)
        last = self._held.mark
        goes_on = last is not None and last.query == owner
        self.epoch = (0 if last is None else last.epoch) + (not goes_on)
        self.taken = True
        return last

    def making(self, _columns: StructType, /) -> AbstractContextManager[None]:
        return nullcontext()

    def begins_to_make(self, _columns: StructType, /) -> bool:
        return False  # a first commit must have a snapshot before it

    def _begin(self, owner: str) -> None:
        """Makes a snapshot: a first commit would have none to be compared with."""
        claim = Mark.claim(self.writer, 0, owner, now_ms())
        columns = self._session.table(self._name).schema
        self._overwrite(self._session.createDataFrame([], columns), claim)
        snapshot = self._load().currentSnapshot()
        if snapshot.parentId() is not None:
            raise TableFenced
        self._held = _Seen(snapshot.snapshotId(), None)

    def _load(self) -> Any:
        jvm: Any = self._session._jvm
        load = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
        table = load(self._session._jsparkSession, self._name)
        table.refresh()
        return table

    def _look(self) -> "_Seen":
        table = self._load()
        snapshot = table.currentSnapshot()
        number = None if snapshot is None else snapshot.snapshotId()
        while snapshot is not None:
            mark = Mark.parse(snapshot.summary().get(_PROPERTY), self.writer)
            if mark is not None and not mark.is_claim:
                return _Seen(number, mark)
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return _Seen(number, None)

    def write(self, rows: DataFrame, mark: Mark, *, anew: bool = False) -> None:
        self._commit(lambda: self._overwrite(rows, mark, anew=anew), mark)

    def _overwrite(self, rows: DataFrame, mark: Mark, *, anew: bool = False) -> None:
        writer = rows.writeTo(self._name).option("fanout-enabled", "true")
        writer = writer.option(f"snapshot-property.{_PROPERTY}", mark.text())
        if self._held.snapshot is not None:
            writer = writer.option("isolation-level", "serializable")
            writer = writer.option("validate-from-snapshot-id", str(self._held.snapshot))
        writer.overwrite(f.lit(anew))

    def merge(self, rows: DataFrame, keys: Sequence[str], mark: Mark, *, update: bool) -> None:
        session = rows.sparkSession

        def add() -> None:
            # A MERGE that only inserts is an append, which nothing is compared with.
            session.sql(f"REFRESH TABLE {self._name}")
            there = session.table(self._name).select(*(f.col(key).alias(f"_{key}") for key in keys))
            same = [rows[key].eqNullSafe(there[f"_{key}"]) for key in keys]
            self._overwrite(rows.join(there, same, "left_anti"), mark)

        def replace() -> None:
            if self._look().mark != self._held.mark:
                raise TableFenced
            rows.createOrReplaceTempView(_VIEW)
            told = {f"spark.sql.iceberg.snapshot-property.{_PROPERTY}": mark.text()}
            with conf(session, told):
                session.sql(merge_statement(self._name, _VIEW, rows.columns, keys, update=True))

        self._commit(replace if update else add, mark)

    def _commit(self, action: Callable[[], None], mark: Mark) -> None:
        """Again where somebody else, who is no job of this service, was at the table."""
        for attempt in range(_ATTEMPTS):
            try:
                action()
                break
            except CALL_FAILED as error:
                if "ValidationException" not in str(error):
                    raise
                seen = self._look()
                if seen.mark != self._held.mark:
                    raise TableFenced from error
                if attempt == _ATTEMPTS - 1:
                    raise TableFenced(
                        "others add to this table faster than a batch is written"
                    ) from error
                self._held = seen
        seen = self._look()
        if seen.mark != mark:
            raise TableFenced
        self._held = seen


class _Seen(NamedTuple):
    """An Iceberg table at one moment."""

    snapshot: int | None  # None for one that nobody has written to
    mark: Mark | None  # None, too, where the snapshots that had it have expired
