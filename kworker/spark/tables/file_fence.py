"""The fence of plain Parquet files: numbered files, the seals, stand in for a log of commits."""

import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.checkpoints.commit_marks import CommitMark
from kworker.spark.checkpoints.folders import local_folder
from kworker.spark.tables.fences import TableFenced
from kworker.spark.tables.sinks import Sink

_DATA, _SEAL, _DRAFT = "data", "seal", "draft"
_SEALED = re.compile(rf"(\d+)\.{_SEAL}")
_NOTHING = "nothing"  # the data of a seal that only stops other jobs


class FileFence:
    """A fence for a folder of Parquet files, which has no log of commits.

    Each batch is first written to a folder beside the table. Then the job creates a seal, which is
    a file that names the batch's query and positions. Seals are numbered: only one job can create
    the seal with the next number. A batch with a seal belongs to the table. This job, or the next
    one, moves the batch's files to the table one by one. After a kill, a batch without a seal is
    written again; a batch with a seal is only moved. Works on all file systems that Hadoop
    supports. But on S3, a rename first looks for the target and then writes it, so two jobs can
    create the same seal.
    """

    def __init__(self, session: SparkSession, sink: Sink, writer: str) -> None:
        self.writer = writer
        self.epoch = 0
        self.taken = False
        jvm: Any = session._jvm
        self._new = jvm.org.apache.hadoop.fs.Path
        self._table = self._new(sink.table.path)
        self._files = self._table.getFileSystem(session._jsc.hadoopConfiguration())
        beside = f".{self._table.getName()}.{writer.replace('/', '.')}.batches"
        self._folder = self._new(self._table.getParent(), beside)
        self._local = local_folder(str(self._folder))
        self._partition_by = sink.table.partition_by
        self._number = -1  # of the last seal

    def creating(self, _columns: StructType, /) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare_first_write(self, _columns: StructType, /) -> bool:
        return False  # a folder is made by its first seal

    def take(self, owner: str) -> CommitMark | None:
        self._number = max(self._seals(), default=-1)
        mark = None
        if self._number >= 0 and self._files.exists(self._table):
            mark, data = self._read(self._number)
            self._move_to_table(data)
        # Leftovers of ended jobs, and of jobs that this seal stops: their next number is taken.
        theirs = self._names()
        self._seal(mark, _NOTHING)
        for name in theirs:
            self._files.delete(self._new(self._folder, name), True)
        goes_on = mark is not None and mark.query == owner
        self.epoch = (0 if mark is None else mark.epoch) + (not goes_on)
        self.taken = True
        return mark

    def write(self, rows: DataFrame, mark: CommitMark, *, overwrite: bool = False) -> None:
        if overwrite:
            raise NotImplementedError(
                'rows in Parquet files cannot be replaced: set format = "delta"'
            )
        data = uuid.uuid4().hex
        rows.write.partitionBy(*self._partition_by).parquet(str(self._path(data, _DATA)))
        self._files.mkdirs(self._table)
        self._seal(mark, data)
        self._move_to_table(data)
        self._delete(self._number - 1, _SEAL)

    def merge(
        self, rows: DataFrame, keys: Sequence[str], mark: CommitMark, *, update: bool
    ) -> None:
        raise NotImplementedError('rows cannot be merged into Parquet files: set format = "delta"')

    def _seal(self, mark: CommitMark | None, data: str) -> None:
        number = self._number + 1
        draft = self._path(uuid.uuid4().hex, _DRAFT)
        settings = {"mark": None if mark is None else mark.text(), "data": data}
        stream = self._files.create(draft, True)
        stream.write(json.dumps(settings).encode())
        stream.close()
        taken = self._rename_if_free(draft, self._path(number, _SEAL))
        # Seals below the last are removed: a job that slept long finds its number free again.
        if taken and max(self._seals()) > number:
            self._delete(number, _SEAL)
            taken = False
        if not taken:
            self._files.delete(draft, False)
            self._delete(data, _DATA)
            raise TableFenced
        self._number = number

    def _rename_if_free(self, draft: Any, target: Any) -> bool:
        """Renames a file unless the target exists; True if it was renamed."""
        if self._local is None:
            return bool(self._files.rename(draft, target))
        try:
            os.link(self._local / draft.getName(), self._local / target.getName())
        except FileExistsError:
            return False
        self._files.delete(draft, False)
        return True

    def _read(self, number: int) -> tuple[CommitMark | None, str]:
        seal = self._path(number, _SEAL)
        stream = self._files.open(seal)
        try:
            settings = json.loads(bytes(stream.readAllBytes()))
            return CommitMark.parse(settings["mark"], self.writer), str(settings["data"])
        except (ValueError, KeyError, TypeError):
            raise Damaged(
                f"{seal} does not hold the JSON that kworker wrote: restore this file, or give the"
                " table another path",
                "",
            ) from None
        finally:
            stream.close()

    def _move_to_table(self, data: str) -> None:
        """Moves the files of a batch into the table, if they are not there yet."""
        for file, name in list(self._unmoved(data)):
            target = self._new(self._table, name)
            self._files.mkdirs(target.getParent())
            self._rename(file, target)
        self._delete(data, _DATA)

    def _unmoved(self, data: str) -> Iterator[tuple[Any, str]]:
        """Yields the Parquet files of a batch that are not in the table yet.

        Each file comes with its future path, relative to the table's folder.
        """
        folder = self._path(data, _DATA)
        if not self._files.exists(folder):
            return
        begin = len(str(self._files.makeQualified(folder))) + 1
        found = self._files.listFiles(folder, True)
        while found.hasNext():
            path = found.next().getPath()
            if path.getName().endswith(".parquet"):
                yield path, str(path)[begin:]

    def _rename(self, file: Any, target: Any) -> None:
        """Renames a file to `target`; succeeds, too, if another job has already done so."""
        with suppress(Py4JJavaError):
            if self._files.rename(file, target):
                return
        if not self._files.exists(target):
            raise OSError(
                f"{file} cannot be renamed to {target}: the file system refuses it; the table's"
                " query tries it again"
            )

    def _seals(self) -> list[int]:
        found = (_SEALED.fullmatch(name) for name in self._names())
        return [int(match[1]) for match in found if match]

    def _names(self) -> Sequence[str]:
        """The names of the files and folders in the folder beside the table, except hidden ones.

        The folder beside the table has new batches, and seals: a seal is a file that makes a batch
        a part of the table. The hidden files are Hadoop's checksums.
        """
        if not self._files.exists(self._folder):
            return ()
        found = [each.getPath().getName() for each in self._files.listStatus(self._folder)]
        return [name for name in found if not name.startswith(".")]

    def _delete(self, name: int | str, kind: str) -> None:
        self._files.delete(self._path(name, kind), True)

    def _path(self, name: int | str, kind: str) -> Any:
        return self._new(self._folder, f"{name}.{kind}")
