"""Folders on any file system that Hadoop reads, through the JVM of a session."""

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from kworker.spark.checkpoints.folders import Folder, LocalFolder, local_folder


def folder_at(session: SparkSession, place: str) -> Folder:
    """The folder at a path or URL. A local folder is read and written without the JVM."""
    local = local_folder(place)
    return HadoopFolder(session, place) if local is None else LocalFolder(local)


class HadoopFolder:
    """A folder on any file system that Hadoop supports, by calls into Spark's JVM.

    Raises OSError for a file that does not match its checksum, and for a failed rename. Other
    errors stay Java's exceptions, after which the caller tries again: an object store may later
    allow what it refuses now.
    """

    def __init__(self, session: SparkSession, place: str) -> None:
        self._session = session
        self._place = place.rstrip("/")
        jvm: Any = session._jvm
        self._new = jvm.org.apache.hadoop.fs.Path
        self._path = self._new(self._place)
        self._files = self._path.getFileSystem(session._jsc.hadoopConfiguration())

    def __str__(self) -> str:
        return self._place

    @property
    def name(self) -> str:
        return self._place.rpartition("/")[2]

    def exists(self, name: str = "") -> bool:
        return bool(self._files.exists(self._at(name)))

    def names(self, below: str) -> Sequence[str]:
        found = self._unless_missing(lambda: self._files.listStatus(self._at(below)))
        return [each.getPath().getName() for each in found or ()]

    def walk(self, below: str) -> Sequence[str]:
        return sorted(self._unless_missing(lambda: list(self._below(below))) or ())

    def _below(self, below: str) -> Iterator[str]:
        begin = len(str(self._files.makeQualified(self._path))) + 1
        found = self._files.listFiles(self._at(below), True)
        while found.hasNext():
            yield str(found.next().getPath())[begin:]

    def read(self, name: str) -> bytes | None:
        try:
            found: bytes | None = self._unless_missing(lambda: self._content(name))
            return found
        except Py4JJavaError as error:
            if self._is(error, "org.apache.hadoop.fs.ChecksumException"):
                raise OSError(errno.EIO, "the file does not match its checksum") from error
            raise

    def _content(self, name: str) -> bytes:
        stream = self._files.open(self._at(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def _unless_missing(self, call: Callable[[], Any]) -> Any:
        """Returns the result of a call; None if Java raises FileNotFoundException."""
        try:
            return call()
        except Py4JJavaError as error:
            if self._is(error, "java.io.FileNotFoundException"):
                return None
            raise

    def write(self, name: str, content: bytes) -> None:
        draft, path = self._at(f"{name}.part"), self._at(name)
        stream = self._files.create(draft, True)
        try:
            stream.write(content)
        finally:
            stream.close()
        # Most file systems do not rename onto an existing file.
        self._files.delete(path, False)
        self._rename(draft, path)

    def delete(self, name: str) -> None:
        self._files.delete(self._at(name), False)

    def remove(self) -> None:
        self._files.delete(self._path, True)

    def beside(self, name: str) -> "HadoopFolder":
        return HadoopFolder(self._session, f"{self._place.rpartition('/')[0]}/{name}")

    def rename(self, name: str) -> "HadoopFolder":
        other = self.beside(name)
        self._rename(self._path, other._path)
        return other

    def _rename(self, path: Any, target: Any) -> None:
        if not self._files.rename(path, target):
            raise OSError(errno.EIO, f"{path} cannot be renamed to {target}")

    def _at(self, name: str) -> Any:
        return self._new(self._path, name) if name else self._path

    def _is(self, error: Py4JJavaError, name: str) -> bool:
        gateway = self._session.sparkContext._gateway
        return bool(is_instance_of(gateway, error.java_exception, name))
