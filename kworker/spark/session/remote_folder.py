"""A folder on a remote file system, for a command that uses Spark for nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from kworker.config.model import Config
from kworker.errors import KworkerError
from kworker.jars import find_java
from kworker.spark.checkpoints.hadoop import HadoopFolder
from kworker.spark.reasons import reason
from kworker.spark.session.jvm import CALL_FAILED
from kworker.spark.session.session import close_session, open_session


@contextmanager
def remote_folder(config: Config, place: str) -> Iterator[HadoopFolder]:
    """Opens the folder `place` through a Spark session that lasts for the `with` block.

    The session takes seconds to start and to end. Raises KworkerError if Spark does not start, and
    in place of Java's exceptions in the `with` block.
    """
    alone = _without_tables(config)
    try:
        session = open_session(alone, [])
    except CALL_FAILED as error:
        find_java()  # raises ConfigError if Java is the reason
        raise KworkerError(f"Spark does not start: {reason(error)}") from error
    try:
        yield HadoopFolder(session, place)
    except (PySparkException, Py4JError) as error:
        raise KworkerError(f"{place} cannot be read or written: {reason(error)}") from error
    finally:
        close_session(session, alone)


def _without_tables(config: Config) -> Config:
    """A configuration without tables, for a local JVM that only reads and writes files."""
    spark = config.spark
    assert spark is not None
    conf = {**spark.conf, "spark.master": "local[1]"}
    alone = spark.model_copy(update={"master": "local[1]", "conf": conf, "tables": []})
    return config.model_copy(update={"spark": alone})
