"""The commits in the log of a Delta table, read file by file, without a Spark job."""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from kworker.spark.tables.sinks import Sink

_RECENT = 100  # commits, in which an application's last one mostly is
_COMMIT = re.compile(r"(\d{20})\.json")
_READ_LINES = ('{"commitInfo"', '{"txn"')  # lines of a commit; the others name files


class DeltaCommit(NamedTuple):
    """The parts of a Delta commit that kworker reads."""

    number: int
    metadata: str | None  # the userMetadata of the commit
    transactions: dict[str, int]  # by application, its version from here on


class DeltaLog:
    """The log of one Delta table, read with Delta's LogStore for the table's file system.

    Raises Spark's and Java's errors.
    """

    def __init__(self, session: SparkSession, sink: Sink) -> None:
        self._session = session
        self._sink = sink

    def commits(self) -> Iterator[DeltaCommit]:
        """Yields the commits, from the last one back to the oldest that the log still has."""
        number = self._last()
        while number >= 0 and (commit := self.commit(number)) is not None:
            yield commit
            number -= 1

    def commit(self, number: int) -> DeltaCommit | None:
        """The commit with this number; None if the log does not have it."""
        lines = self._read(f"{number:020d}.json")
        return None if lines is None else _commit(number, lines)

    def last_version(self, application: str) -> int:
        """The version of the last Delta transaction with this application id; -1 without one.

        Searches the latest commits. Loads Delta's snapshot only if they do not tell the version.
        """
        last = None
        for last in islice(self.commits(), _RECENT):
            if application in last.transactions:
                return last.transactions[application]
        return -1 if last and last.number == 0 else self.version_of_delta(application)

    def version_of_delta(self, application: str) -> int:
        """The version of the last Delta transaction with this application id; -1 without one.

        Reads it from Delta's snapshot of the table, which takes seconds to load.
        """
        jvm: Any = self._session._jvm
        nothing = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        table = log.forTable(self._session._jsparkSession, self._location)
        last = table.update(False, nothing, nothing).transactions().get(application)
        return int(last.get()) if last.isDefined() else -1

    @cached_property
    def _location(self) -> str:
        if self._sink.table.path:
            return self._sink.table.path
        [detail] = self._session.sql(f"DESCRIBE DETAIL {self._sink.name}").collect()
        return str(detail["location"])

    @cached_property
    def _store(self) -> Any:
        jvm: Any = self._session._jvm
        companion = getattr(jvm.org.apache.spark.sql.delta.storage, "LogStore$")
        return getattr(companion, "MODULE$").apply(self._session._jsparkSession)

    @cached_property
    def _conf(self) -> Any:
        return self._session._jsparkSession.sessionState().newHadoopConf()

    def _path(self, name: str) -> Any:
        jvm: Any = self._session._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self._location.rstrip('/')}/_delta_log/{name}")
        return path.getFileSystem(self._conf).makeQualified(path)

    def _last(self) -> int:
        """The number of the last commit; -1 without any."""
        last = self._hint()
        try:
            files = self._store.listFrom(self._path(f"{max(0, last):020d}.json"), self._conf)
            while files.hasNext():
                if found := _COMMIT.fullmatch(files.next().getPath().getName()):
                    last = max(last, int(found[1]))
        except Py4JJavaError as error:
            if not self._is_missing(error):
                raise
        return last

    def _hint(self) -> int:
        """A lower bound of the last commit's number; -1 if Delta's `_last_checkpoint` has none."""
        try:
            lines = self._read("_last_checkpoint")
            return int(json.loads(lines[0])["version"]) if lines else -1
        except (ValueError, TypeError, KeyError, Py4JJavaError):
            return -1

    def _read(self, name: str) -> list[str] | None:
        """The lines of a file; None where there is none."""
        try:
            text = self._store.read(self._path(name), self._conf).mkString("\n")
        except Py4JJavaError as error:
            if self._is_missing(error):
                return None
            raise
        return str(text).split("\n")  # userMetadata may hold other line ends

    def _is_missing(self, error: Py4JJavaError) -> bool:
        gateway = self._session.sparkContext._gateway
        missing = "java.io.FileNotFoundException"
        return bool(is_instance_of(gateway, error.java_exception, missing))


def _commit(number: int, lines: list[str]) -> DeltaCommit:
    metadata, transactions = None, {}
    for line in lines:
        if line.startswith(_READ_LINES):
            action = json.loads(line)
            if "txn" in action:
                transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
            else:
                metadata = action["commitInfo"].get("userMetadata")
    return DeltaCommit(number, metadata, transactions)
