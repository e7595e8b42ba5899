"""The interface of a table's fence: one job alone can commit, each time with a `CommitMark`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kworker.errors import KworkerError
from kworker.spark.checkpoints.commit_marks import CommitMark

ROWS_VIEW = "kworker_rows"  # in a session that only one query's batches use


class TableFenced(KworkerError):
    """Raised when another job has written to the table, so that this batch was not written."""

    def __init__(self, why: str = "another job has written to this table meanwhile") -> None:
        super().__init__(why)


class Fence(Protocol):
    """Lets only one job write to a table.

    Each commit has a `CommitMark`, which names the query, the batch and the batch's positions.
    Owned by one query: first by the thread that starts the query, then by the thread that writes
    the query's batches.
    """

    writer: str
    epoch: int  # of the commits from now on
    taken: bool  # False before the table exists

    def take(self, owner: str) -> CommitMark | None:
        """Begins to guard the table: from now on, this job and another one cannot both write to it.

        Returns the `CommitMark` from the last batch's commit, or None if no batch's commit has one.
        `owner` is the id of the streaming query if its checkpoint is on this host, else an id of
        this job. Raises TableFenced if another job commits to the table at the same time.
        """

    def creating(self, columns: StructType, /) -> AbstractContextManager[None]:
        """Returns a context manager, in whose `with` block the caller creates the table.

        For a Delta table, the block adds a `CommitMark` to the metadata of the table's first
        commit. This mark names the query that created the table, and no batch.
        """

    def prepare_first_write(self, columns: StructType, /) -> bool:
        """Prepares the table's folder, so that the first write of rows creates the table.

        Returns False if this is not possible: then the table must be created before the write.
        """

    def write(self, rows: DataFrame, mark: CommitMark, *, overwrite: bool = False) -> None:
        """Appends `rows` to the table. With `overwrite`, they replace all its other rows.

        Raises TableFenced if another job has committed to the table since this job called `take`.
        """

    def merge(
        self, rows: DataFrame, keys: Sequence[str], mark: CommitMark, *, update: bool
    ) -> None:
        """Inserts the rows whose keys are not in the table.

        With `update`, a row whose keys are in the table replaces the table's row, unless the
        table's row comes from a later record. Raises TableFenced if another job has committed to
        the table since this job called `take`.
        """


@contextmanager
def session_conf(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets settings of the Spark session for the `with` block, and then unsets them."""
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)
