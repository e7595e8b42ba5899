"""Spark's own log: its layout, and the loggers that are silenced."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from pyspark.sql import SparkSession

# They warn of normal events at each start or each stop.
_QUIET_LOGGERS = (
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
_TASK_LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.util.Utils",
)
_quiet_lock = Lock()
_quiet_sessions: list[SparkSession] = []  # sessions whose tasks are made to fail
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


def log4j_properties() -> str:
    """The configuration of Log4j. Messages of level WARN and above are written to stderr.

    The loggers in _QUIET_LOGGERS only write messages of level ERROR and above.
    """
    quiet = [
        f"logger.q{number}.name = {name}\nlogger.q{number}.level = error\n"
        for number, name in enumerate(_QUIET_LOGGERS)
    ]
    return _LOG4J + "".join(quiet)


@contextmanager
def quiet_tasks(session: SparkSession) -> Iterator[None]:
    """Silences Spark's log of tasks for the `with` block, in which tasks fail on purpose."""
    jvm: Any = session._jvm
    log4j = jvm.org.apache.logging.log4j
    set_level = log4j.core.config.Configurator.setLevel
    # Log levels belong to the JVM, which several queries share.
    with _quiet_lock:
        _quiet_sessions.append(session)
        for name in _TASK_LOGGERS:
            set_level(name, log4j.Level.OFF)
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_sessions.remove(session)
            for name in () if _quiet_sessions else _TASK_LOGGERS:
                set_level(name, log4j.Level.ERROR if name in _QUIET_LOGGERS else log4j.Level.WARN)
