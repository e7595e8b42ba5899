"""A table's own word on how far it is, and on whose commits it takes: of Delta and Iceberg."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kworker.errors import KworkerError
from kworker.spark.checkpoints.commit_marks import CommitMark

ROWS_VIEW = "kworker_rows"  # in a session that the batches of one query have for themselves


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

    def take(self, owner: str) -> CommitMark | None:
        """The last mark of a batch, to which no other job adds from now on; None for none yet.

        `owner` is the query that wrote before and goes on, or else this job. Raises Fenced where
        another takes the table at the same moment.
        """

    def creating(self, columns: StructType, /) -> AbstractContextManager[None]:
        """While this job makes a table that was not there to be taken: so it has that one."""

    def prepare_first_write(self, columns: StructType, /) -> bool:
        """Whether its first write will make the table that is not there, with what it adds."""

    def write(self, rows: DataFrame, mark: CommitMark, *, overwrite: bool = False) -> None:
        """Adds the rows, or has them take the place of all others. Raises Fenced."""

    def merge(
        self, rows: DataFrame, keys: Sequence[str], mark: CommitMark, *, update: bool
    ) -> None:
        """Adds the rows whose keys the table lacks; `update` replaces the others. Raises Fenced."""


@contextmanager
def session_conf(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for a while."""
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)
