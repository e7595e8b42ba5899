"""The fence of a table: only one job's commits get in, and each has a mark."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kworker.errors import KworkerError
from kworker.spark.checkpoints.commit_marks import CommitMark

ROWS_VIEW = "kworker_rows"  # in a session that only one query's batches use


class TableFenced(KworkerError):
    """Another job has written to the table since this one read it; the batch is not in it."""

    def __init__(self, why: str = "another job has written to this table meanwhile") -> None:
        super().__init__(why)


class Fence(Protocol):
    """A table with one writer: each commit has a mark, and those of other jobs are refused.

    Owned by one query: by the thread that starts it, then by the thread of its batches.
    """

    writer: str
    epoch: int  # of the commits from now on
    taken: bool  # False before the table exists

    def take(self, owner: str) -> CommitMark | None:
        """Excludes other jobs from now on; returns the last mark of a batch, None for none yet.

        `owner` is the query that wrote before and continues, or else this job. Raises TableFenced
        when another job takes the table at the same moment.
        """

    def creating(self, columns: StructType, /) -> AbstractContextManager[None]:
        """A context in which this job creates the table, and so takes it."""

    def prepare_first_write(self, columns: StructType, /) -> bool:
        """Prepares a first write that creates the missing table; False where it cannot."""

    def write(self, rows: DataFrame, mark: CommitMark, *, overwrite: bool = False) -> None:
        """Appends the rows, or replaces all others by them. Raises TableFenced."""

    def merge(
        self, rows: DataFrame, keys: Sequence[str], mark: CommitMark, *, update: bool
    ) -> None:
        """Adds rows whose keys the table lacks; `update` replaces others. Raises TableFenced."""


@contextmanager
def session_conf(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets settings of a session for the `with` block, and unsets them."""
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)
