"""The start and the end of one Spark session in a JVM of its own."""

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import psutil
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kworker.config.model import Config
from kworker.host import descriptor_path, memory_file
from kworker.spark.checkpoints.lease import Lease
from kworker.spark.session.jvm import (
    CALL_FAILED,
    STOP_TIMEOUT_S,
    end_jvm,
    forget_ended_jvm,
    jvm_process,
)
from kworker.spark.session.settings import properties, properties_text, scratch_folder
from kworker.spark.session.spark_log import log4j_properties


def _clear_scratch_folder(folder: Path) -> None:
    """Creates the temporary folder of this process; removes those of ended processes."""
    mine = scratch_folder(folder)
    mine.mkdir(parents=True, exist_ok=True)
    for other in mine.parent.iterdir():
        if other.name.isdigit() and not psutil.pid_exists(int(other.name)):
            shutil.rmtree(other, ignore_errors=True)


def open_session(
    config: Config,
    archives: Iterable[Path],
    lease: Lease | None = None,
    missing_formats: Collection[str] = (),
    options: str = "",
) -> SparkSession:
    """Starts the JVM and the session, which takes seconds. Spark logs to stderr, from WARN up.

    The JVM inherits the locked files of `lease`, so that no other job takes the checkpoints before
    the JVM has ended. Table formats in `missing_formats` are not set up. `options` are more options
    for the JVM.
    """
    folder = config.state_dir / "spark"
    _clear_scratch_folder(folder)
    (folder / "log4j2.properties").write_text(log4j_properties())
    settings = properties(config, archives, folder, missing_formats, options)
    # Python workers of Spark import the user's functions by name, from the same places.
    paths = [str(config.file.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # In memory: settings may be secret, a command line is public, and a kill leaves files behind.
    with memory_file(properties_text(settings)) as file:
        path = descriptor_path(file)
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {path} pyspark-shell"
        forget_ended_jvm()
        kept = {"pass_fds": (*(lease.descriptors if lease else ()), file)}
        gateway = launch_gateway(popen_kwargs=kept)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
        jvm = jvm_process()
        if lease and jvm:
            lease.share(jvm.pid)
        # A JVM that spark-submit has started did not read the file.
        builder = SparkSession.builder
        if jvm is None:
            builder = builder.config(map={**settings})
        session = builder.getOrCreate()
    # pyspark logs the exceptions that it raises; kworker logs them once, as the reason.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    return session


def count_executors(session: SparkSession) -> int:
    """The number of executors in the cluster, without the driver."""
    jvm: Any = session.sparkContext._jsc
    return int(jvm.sc().getExecutorMemoryStatus().size()) - 1


def _within_timeout(seconds: float) -> bool:
    return seconds < STOP_TIMEOUT_S


def close_session(
    session: SparkSession, config: Config, may_wait: Callable[[float], bool] = _within_timeout
) -> bool:
    """Stops Spark, and returns when its JVM is gone; True if the JVM exited with 0.

    The JVM is killed once `may_wait`, called with the seconds that have passed, returns False. The
    temporary files are removed.
    """
    jvm = jvm_process()
    try:
        if jvm is None or jvm.poll() is None:
            session.stop()
    except CALL_FAILED:
        pass  # it is ending already
    finally:
        ended = end_jvm(may_wait)
        shutil.rmtree(scratch_folder(config.state_dir / "spark"), ignore_errors=True)
    return ended
