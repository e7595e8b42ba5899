"""One Spark session in a JVM of its own: what it is told, how it starts, how it ends."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import psutil
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kworker import jars
from kworker.config.model import Config, SparkSettings, TableSettings
from kworker.errors import KworkerError, Unreachable
from kworker.host import oom_kills, spark_heap_bytes
from kworker.spark.checkpoints.lease import Lease
from kworker.spark.session.class_data import given_options
from kworker.spark.session.home import spark_home
from kworker.spark.sql import identifier

STOP_TIMEOUT_S = 5.0
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # is set where spark-submit has started the JVM

CALL_FAILED = (PySparkException, Py4JError, OSError)
"""What a call into the JVM may raise: Spark's own errors, and the connection's."""

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_ICEBERG_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_VERSION = re.compile(r"-\d[^/]*$")
_COLLECTOR = re.compile(r"-XX:[+-]Use\w+GC|-XX:(Flags|VMOptionsFile)=|(^|\s)@")  # or in a file
# Three times Java's own: a start runs much code a few times, and two cores had rather run it than
# make it fast (2.5 of 25 s of CPU; batches that come later are as fast).
_COMPILED_LATER = " ".join(
    f"-XX:Tier4{what}={calls}"
    for what, calls in (
        ("InvocationThreshold", 15_000),
        ("MinInvocationThreshold", 1_800),
        ("CompileThreshold", 45_000),
        ("BackEdgeThreshold", 120_000),
    )
)
_HEAP_FULL = (3, 52)  # exit codes: Java's own, and Spark's
_oom_kills_before = oom_kills()
# They warn at each start, or each stop, of what is in order.
_QUIET = (
    "org.apache.hadoop.util.NativeCodeLoader",
    "org.apache.kafka.clients",
    "org.apache.spark.rdd.MapPartitionsRDD",
    "org.apache.spark.scheduler.DAGScheduler",
    "org.apache.spark.sql.catalyst.util.SparkStringUtils",
    "org.apache.spark.sql.execution.streaming.ProcessingTimeExecutor",
    "org.apache.spark.sql.execution.streaming.ResolveWriteToStream",
    "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "org.apache.spark.sql.kafka010",
    "org.apache.spark.util.Utils",
)
_OF_TASKS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.util.Utils",
)
_quiet_lock = Lock()
_quiet: list[SparkSession] = []  # those whose tasks are made to fail just now
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} spark %p %c{1}: %m%n\
%notEmpty{%ex{8}%n}
appender.console.layout.alwaysWriteExceptions = false
"""


class JvmGone(KworkerError):
    """The JVM ended by itself, or by another's hand: only a new process can have a new one."""


class OutOfMemory(JvmGone):
    """It ended because its heap was full, or the system had no memory for it."""


def is_local(master: str) -> bool:
    """Whether the whole of Spark runs inside this process's one JVM."""
    return master.startswith("local")


def has_own_jvm(spark: SparkSettings) -> bool:
    """Whether there is but one JVM, and this process starts and ends it."""
    return is_local(spark.master) and _SUBMITTED not in os.environ


def properties(
    config: Config,
    archives: Iterable[Path],
    folder: Path,
    without: Collection[str] = (),
    options: str = "",
) -> dict[str, str]:
    """All that Spark is told; what `[spark.conf]` says goes before what is usual here.

    But not about formats that are to be had `without` archives, which would stop the others. The
    JVM gets more `options`.
    """
    spark = config.spark
    assert spark is not None
    usual = {
        "spark.master": spark.master,
        "spark.app.name": f"kworker {config.name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{spark_heap_bytes() >> 20}m",
        "spark.log.structuredLogging.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # Spark's own choice, INT96, is known to few other readers.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.shuffle.partitions": "2",
        # A longer method is never compiled by the JVM; Spark knows a way with shorter ones.
        "spark.sql.codegen.hugeMethodLimit": "8000",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.stopTimeout": f"{STOP_TIMEOUT_S:.0f}s",
        # Read every second: what is older has been seen.
        "spark.sql.streaming.numRecentProgressUpdates": "16",
        **(_LOCAL if is_local(spark.master) else {}),
        **(_STATE_ON_DISK if any(map(_remembers_all, spark.tables)) else {}),
        **_catalogs(spark.tables, without),
    }
    both = {
        **_place(spark, archives),
        "spark.sql.extensions": ",".join(_extensions(spark, without)),
        "spark.driver.extraJavaOptions": f"{_java_options(folder, spark.conf)} {options}".strip(),
    }
    return {**usual, **spark.conf, **both}


_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The default of 50 tasks for each read of a table's log takes seconds on few cores.
    "spark.databricks.delta.snapshotPartitions": "2",
}


# A checkpoint goes on with what it began with.
_STATE_ON_DISK = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


def _remembers_all(table: TableSettings) -> bool:
    """Whether the position of every result is kept, to know those that come again."""
    return table.dedupe and table.mode != "append"


def _place(spark: SparkSettings, archives: Iterable[Path]) -> dict[str, str]:
    """How the archives reach Spark.

    On the class path of the one JVM, where there is but one, and it is ours: Spark would copy
    the others, for each start anew, to a temporary folder that a kill leaves behind.
    """
    paths = [str(path) for path in archives]
    if not has_own_jvm(spark):
        return {"spark.jars": ",".join(filter(None, [*paths, spark.conf.get("spark.jars", "")]))}
    own = spark.conf.get("spark.driver.extraClassPath", "")
    return {"spark.driver.extraClassPath": os.pathsep.join(filter(None, [*paths, own]))}


def _extensions(spark: SparkSettings, without: Collection[str]) -> Iterator[str]:
    formats = {table.format for table in spark.tables}.difference(without)
    if "delta" in formats:
        yield _DELTA_EXTENSION
    if "iceberg" in formats:
        yield _ICEBERG_EXTENSION
    if own := spark.conf.get("spark.sql.extensions"):
        yield own


def _catalogs(tables: Iterable[TableSettings], without: Collection[str]) -> dict[str, str]:
    """Delta's is the session's own; an Iceberg table by path gets one for its parent folder."""
    found = {}
    for index, table in enumerate(tables):
        if table.format in without:
            continue
        if table.format == "delta":
            found["spark.sql.catalog.spark_catalog"] = (
                "org.apache.spark.sql.delta.catalog.DeltaCatalog"
            )
        if table.format == "iceberg" and table.path:
            catalog = f"spark.sql.catalog.{iceberg_catalog(index)}"
            found[catalog] = _ICEBERG_CATALOG
            found[f"{catalog}.type"] = "hadoop"
            found[f"{catalog}.warehouse"] = table.path.rstrip("/").rpartition("/")[0] or "/"
    return found


def iceberg_catalog(index: int) -> str:
    """The catalog that holds nothing but the parent folder of the table at `index`."""
    return f"kworker_{index}"


def iceberg_table(index: int, path: str) -> str:
    """How SQL names an Iceberg table at a path."""
    return f"{iceberg_catalog(index)}.{identifier(path.rstrip('/').rpartition('/')[2])}"


def _java_options(folder: Path, conf: dict[str, str]) -> str:
    own = conf.get("spark.driver.extraJavaOptions", "")
    log4j = f'"-Dlog4j2.configurationFile={folder / "log4j2.properties"}"'
    places = f'"-Dderby.system.home={folder}" "-Djava.io.tmpdir={scratch(folder)}"'
    # What starts a query makes garbage by the gigabyte; of two choices Java would not start.
    collector = "" if _COLLECTOR.search(given_options(conf)) else "-XX:+UseParallelGC "
    # One thread without memory would leave a query that never goes on.
    ends = "-XX:+ExitOnOutOfMemoryError"
    return f"{log4j} {places} {collector}{_COMPILED_LATER} {ends} {own}".strip()


def scratch(folder: Path) -> Path:
    """Where this process's JVM keeps what it needs while it runs."""
    return folder / "tmp" / str(os.getpid())


def _clear_scratch(folder: Path) -> None:
    """Makes ours, and removes what killed JVMs have left in theirs."""
    mine = scratch(folder)
    mine.mkdir(parents=True, exist_ok=True)
    for other in mine.parent.iterdir():
        if other.name.isdigit() and not psutil.pid_exists(int(other.name)):
            shutil.rmtree(other, ignore_errors=True)


def archives(tables: Iterable[TableSettings], *, progress: Callable[[str], None]) -> list[Path]:
    """What the tables need and pyspark does not bring: from the cache, at first from the network.

    Raises `Unreachable` when they can be had from neither.
    """
    found, missing = archives_to_be_had(tables, progress=progress)
    for error in missing.values():
        raise error
    return found


def archives_to_be_had(
    tables: Iterable[TableSettings], *, progress: Callable[[str], None]
) -> tuple[list[Path], dict[str, Unreachable]]:
    """The same, and by format why those of some tables are not. Raises it when no table is left."""
    found = list(jars.fetch(jars.SPARK_KAFKA, progress=progress))
    formats = {table.format for table in tables}
    missing: dict[str, Unreachable] = {}
    for name in sorted(formats & _ARCHIVES.keys()):
        try:
            found += jars.fetch(_ARCHIVES[name], progress=progress)
        except Unreachable as error:
            missing[name] = error
            if missing.keys() == formats:
                raise
    return missing_from(spark_home() / "jars", found), missing


_ARCHIVES = {"delta": jars.DELTA, "iceberg": jars.ICEBERG}


def missing_from(folder: Path, archives: Iterable[Path]) -> list[Path]:
    """Those whose artefact, of whatever version, is not in `folder`."""
    shipped = {_artefact(path) for path in folder.glob("*.jar")}
    return list({path.name: path for path in archives if _artefact(path) not in shipped}.values())


def _artefact(path: Path) -> str:
    return _VERSION.sub("", path.name)


def open_session(
    config: Config,
    archives: Iterable[Path],
    lease: Lease | None = None,
    without: Collection[str] = (),
    options: str = "",
) -> SparkSession:
    """Starts the JVM; takes some seconds. Spark's log goes to stderr, from WARN up.

    With a lease, nobody else has that before the JVM is gone, too. Formats whose archives are
    missing are left out. The JVM gets more `options`.
    """
    folder = config.state_dir / "spark"
    _clear_scratch(folder)
    (folder / "log4j2.properties").write_text(_log4j())
    told = properties(config, archives, folder, without, options)
    # Found by name: a function of the user's in a Python worker is imported like here.
    paths = [str(config.file.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # By file, which is gone when the JVM runs: what it holds may be secret, and a
    # command line is not.
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix="conf-") as file:
        file.write(properties_text(told))
        file.flush()
        os.environ["PYSPARK_SUBMIT_ARGS"] = f'--properties-file "{file.name}" pyspark-shell'
        kept = {"pass_fds": lease.descriptors if lease else ()}
        gateway = launch_gateway(popen_kwargs=kept)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
        jvm = _jvm()
        if lease and jvm:
            lease.share(jvm.pid)
        # One that spark-submit has started knows nothing of the file.
        builder = SparkSession.builder
        if jvm is None:
            builder = builder.config(map={**told})
        session = builder.getOrCreate()
    # pyspark logs what it raises; here it is told once, as the reason.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    return session


def properties_text(told: dict[str, str]) -> str:
    """As java.util.Properties reads it."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in told.items())


def _escaped(text: str) -> str:
    text = re.sub(r"[\\:=#! ]", r"\\\g<0>", text)
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _log4j() -> str:
    quiet = [
        f"logger.q{number}.name = {name}\nlogger.q{number}.level = error\n"
        for number, name in enumerate(_QUIET)
    ]
    return _LOG4J + "".join(quiet)


@contextmanager
def quiet_tasks(session: SparkSession) -> Iterator[None]:
    """While tasks are made to fail: each tells it many times over, with its stack."""
    jvm: Any = session._jvm
    log4j = jvm.org.apache.logging.log4j
    set_level = log4j.core.config.Configurator.setLevel
    # Levels are the JVM's, and several queries may be at it.
    with _quiet_lock:
        _quiet.append(session)
        for name in _OF_TASKS:
            set_level(name, log4j.Level.OFF)
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet.remove(session)
            for name in () if _quiet else _OF_TASKS:
                set_level(name, log4j.Level.ERROR if name in _QUIET else log4j.Level.WARN)


def count_executors(session: SparkSession) -> int:
    """Of a cluster, besides the driver."""
    jvm: Any = session.sparkContext._jsc
    return int(jvm.sc().getExecutorMemoryStatus().size()) - 1


def check_jvm() -> None:
    """Raises `JvmGone` when the JVM has ended."""
    jvm = _jvm()
    if jvm is None or jvm.poll() is None:
        return
    if jvm.returncode in _HEAP_FULL:
        raise OutOfMemory(
            "Spark's JVM ran out of memory: raise spark.driver.memory in [spark.conf]"
        )
    if jvm.returncode == -signal.SIGKILL and oom_kills() > _oom_kills_before:
        raise OutOfMemory("the system had no memory left for Spark's JVM and killed it")
    raise JvmGone(f"Spark's JVM has ended ({_how(jvm.returncode)})")


def await_jvm_end() -> None:
    """After a call that failed: `JvmGone`, if the reason is that the JVM is ending."""
    jvm = _jvm()
    if jvm is not None:
        try:
            jvm.wait(1.0)
        except subprocess.TimeoutExpired:
            return
    check_jvm()


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _briefly(seconds: float) -> bool:
    return seconds < STOP_TIMEOUT_S


def has_live_jvm() -> bool:
    """Whether the JVM that this process has started still runs."""
    jvm = _jvm()
    return jvm is not None and jvm.poll() is None


def close_session(
    session: SparkSession, config: Config, lasts: Callable[[float], bool] = _briefly
) -> bool:
    """Stops Spark, and returns when its JVM and what it kept are gone.

    Whether that ended by itself: it is killed once it no longer `lasts`, by the seconds since.
    """
    jvm = _jvm()
    try:
        if jvm is None or jvm.poll() is None:
            session.stop()
    except CALL_FAILED:
        pass  # it is ending already
    finally:
        ended = end_jvm(lasts)
        shutil.rmtree(scratch(config.state_dir / "spark"), ignore_errors=True)
    return ended


def end_jvm(lasts: Callable[[float], bool]) -> bool:
    """The JVM ends when its standard input does; one that no longer `lasts` is killed."""
    jvm = _jvm()
    if jvm is None:
        return True
    began = time.monotonic()
    if lasts(0.0) and jvm.stdin is not None:
        jvm.stdin.close()
    while jvm.poll() is None and lasts(time.monotonic() - began):
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(0.1)
    if jvm.poll() is None:
        jvm.kill()
    return jvm.wait() == 0


def _jvm() -> "subprocess.Popen[bytes] | None":
    # The only place where pyspark keeps the process that it started.
    return getattr(SparkContext._gateway, "proc", None)
