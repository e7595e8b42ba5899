"""Spark's loaded classes, kept in a file for the next start of a JVM.

Half the work of a starting job is to read, check and link 18,000 classes. The JVM can write
them to a file when it ends ("class data sharing"), which takes 17 seconds and 190 MB, once; from
then on a start takes three seconds less. A file only fits the Java, the jar files and the JVM
options with which it was written: the JVM refuses a file that does not fit. The first run with such
a combination only leaves a note in the cache folder. The second run finds the note, and writes the
file. So if the cache folder does not last, as in a container, no run waits for a file that is
thrown away.
"""

import hashlib
import math
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from kworker.errors import ConfigError
from kworker.jars import cache_folder, java_of_environment
from kworker.spark.session.home import spark_home

KEPT = 5  # files: services of one host may differ
IN_USE_S = 3600.0  # since a start last read it: else starts in turn would evict each other's files
LEARNING_S = 120.0  # it takes 17 s on two idle cores
_NOTED_S = 7 * 86400.0  # after which a note is removed
_DRAFT_S = 3600.0  # after which a draft is removed: its process is gone
_SUFFIX, _NOTE, _FAILED, _DRAFT = ".jsa", ".seen", ".failed", ".draft"
_PROPERTIES = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_ENVIRONMENT = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_MEMORY_AND_PATH = ("spark.driver.memory", "spark.driver.extraClassPath")
# With agents or other modules, too, the JVM cannot keep classes: it would not start.
_INCOMPATIBLE = re.compile(
    r"-Xshare:|-XX:[+-]?\w*Shared\w*|-XX:ArchiveClassesAtExit|-XX:[+-]RecordDynamicDumpInfo"
    r"|-javaagent:|-agentlib:|-agentpath:|-Xrun|--patch-module|--limit-modules|--upgrade-module-path"
)
_OPTION_SOURCES = (*_PROPERTIES, *_ENVIRONMENT)
_FOLDERS = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")  # class data allows no folders


def given_options(conf: Mapping[str, str]) -> str:
    """All JVM options from Spark's properties, its configuration files and the environment."""
    options = [*map(conf.get, _PROPERTIES), *map(os.environ.get, _ENVIRONMENT)]
    for file in ("spark-defaults.conf", "spark-env.sh"):
        with suppress(OSError):
            lines = (_conf_folder() / file).read_text(errors="replace").splitlines()
            options += [line for line in lines if any(map(line.__contains__, _OPTION_SOURCES))]
    return " ".join(filter(None, options))


class ClassData:
    """The file of loaded classes (Java's class data sharing) with which a JVM starts faster.

    Serves one start of the JVM. Owned by the job's main thread.
    """

    def __init__(self, conf: Mapping[str, str], archives: Iterable[Path]) -> None:
        self._path = _path(conf, archives)
        self._draft = Path()
        self.learning = False
        """True if the JVM writes its classes when it ends."""

    def option(self, *, learn: bool) -> str:
        """Returns the JVM option that loads the classes which an earlier JVM has kept in a file.

        If there is no such file and `learn` is True, the option may make the JVM write this file
        when it ends. Returns "" if neither is possible.
        """
        self.learning = False
        if self._path is None:
            return ""
        try:
            return self._option(self._path, learn=learn)
        except OSError:
            return ""  # an unreadable cache counts as none

    def _option(self, path: Path, *, learn: bool) -> str:
        if path.exists():
            with suppress(OSError):
                os.utime(path)  # the least recently used are removed first
            return f'"-XX:SharedArchiveFile={path}" -Xlog:cds*=off'
        if not learn or not _make_room(path.parent) or path.with_suffix(_FAILED).exists():
            return ""
        note = path.with_suffix(_NOTE)
        self.learning = note.exists()
        note.touch()
        if not self.learning:
            return ""
        self._draft = path.with_suffix(f".{uuid.uuid4().hex}{_DRAFT}")
        return f'"-XX:ArchiveClassesAtExit={self._draft}" -Xlog:cds*=off'

    def refused(self) -> None:
        """Removes the file of loaded classes, which may be the reason why the JVM did not start.

        Leaves a marker file, which keeps later starts from making another file of loaded classes.
        """
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._path.with_suffix(_FAILED).touch()

    def settle(self, *, awaited: bool, ended: bool) -> None:
        """Keeps or removes the file of loaded classes that the JVM has written at its end.

        Keeps the file if the job `awaited` the end of the JVM, and if the JVM `ended` well.
        """
        if not self.learning or self._path is None:
            return
        with suppress(OSError):
            if awaited and ended and self._draft.exists():
                _write_through(self._draft)
                self._draft.replace(self._path)
                self._path.with_suffix(_NOTE).unlink(missing_ok=True)
                _prune(self._path.parent)
                return
            self._draft.unlink(missing_ok=True)
            if awaited:
                self._path.with_suffix(_FAILED).touch()


def _write_through(path: Path) -> None:
    """Syncs a file to disk, since the JVM trusts every file that has the right size."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _conf_folder() -> Path:
    return Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")


def _path(conf: Mapping[str, str], archives: Iterable[Path]) -> Path | None:
    """The path of the file in which a JVM keeps its loaded classes for later starts of Spark.

    None if Spark's settings, its folders or the environment do not allow such a file.
    """
    options = given_options(conf)
    if _INCOMPATIBLE.search(options) or any(map(os.environ.get, _FOLDERS)):
        return None
    try:
        if _conf_folder().is_dir() and any(_conf_folder().iterdir()):
            return None
        home = java_of_environment().resolve().parents[1]
        parts = [home / "lib" / "modules", home / "lib" / "server" / "classes.jsa", *archives]
        parts += sorted((spark_home() / "jars").iterdir())
        parts_read = [f"{part} {part.stat().st_size} {part.stat().st_mtime_ns}" for part in parts]
    except (ConfigError, OSError):
        return None
    name = hashlib.sha256(
        "\n".join(
            (options, *(conf.get(each, "") for each in _MEMORY_AND_PATH), *parts_read)
        ).encode()
    ).hexdigest()[:16]
    return cache_folder() / "classes" / f"{name}{_SUFFIX}"


def _make_room(folder: Path) -> bool:
    """Removes outdated files from the folder in which JVMs keep files of their loaded classes.

    The outdated files are those that a JVM began to write but did not finish, and old marker files
    of earlier starts. Returns True if one more file of loaded classes may be made: if the folder is
    writable, and fewer than `KEPT` files of loaded classes were used lately.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        lasts_s = {_SUFFIX: math.inf, _DRAFT: _DRAFT_S}.get(path.suffix, _NOTED_S)
        if _age_s(path) > lasts_s:
            path.unlink(missing_ok=True)
    in_use = [path for path in folder.glob(f"*{_SUFFIX}") if _age_s(path) < IN_USE_S]
    return len(in_use) < KEPT and os.access(folder, os.W_OK)


def _prune(folder: Path) -> None:
    """Removes files of loaded classes; keeps the `KEPT` files that were used last.

    A new version of Java or Spark makes a new file, and cannot use the old ones.
    """
    for path in sorted(folder.glob(f"*{_SUFFIX}"), key=_age_s)[KEPT:]:
        path.unlink(missing_ok=True)


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime
