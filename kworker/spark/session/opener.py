"""Opens the job's Spark session, whose JVM may load saved classes, or save them when it ends."""

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
from pyspark.sql import SparkSession

from kworker.config.model import Config
from kworker.errors import KworkerError, Unreachable
from kworker.jars import find_java
from kworker.spark.checkpoints.lease import Lease
from kworker.spark.reasons import reason
from kworker.spark.session.archives import available_archives
from kworker.spark.session.class_data import LEARNING_S, ClassData
from kworker.spark.session.jvm import CALL_FAILED, end_jvm, has_live_jvm, has_own_jvm
from kworker.spark.session.session import close_session, open_session
from kworker.spark.stop import StopRequest

_LOG = structlog.get_logger()


class SessionOpener:
    """Opens and closes the Spark session of a job. Owned by the job's main thread.

    `missing` holds an error for each table format whose jar files could not be fetched.
    """

    def __init__(self, config: Config, lease: Lease, stop: StopRequest) -> None:
        self._config = config
        self._lease = lease
        self._stop = stop
        self._classes: ClassData | None = None
        self.missing: dict[str, Unreachable] = {}

    def open(self, *, learn: bool) -> SparkSession:
        """Starts the session, which takes seconds.

        With `learn`, the JVM may write its loaded classes to a file when it ends, so that later
        starts are faster. Raises KworkerError when Spark does not start.
        """
        spark = self._config.spark
        assert spark is not None
        found, self.missing = available_archives(
            spark.tables, progress=lambda text: _LOG.info(text)
        )
        if has_own_jvm(spark):
            self._classes = ClassData(spark.conf, found)
        try:
            return self._open(found, learn=learn)
        except CALL_FAILED as error:
            find_java()  # raises ConfigError if Java is the reason
            raise KworkerError(f"Spark does not start: {reason(error)}") from error

    def _open(self, archives: Sequence[Path], *, learn: bool) -> SparkSession:
        classes = self._classes
        options = classes.option(learn=learn) if classes else ""
        try:
            return open_session(self._config, archives, self._lease, self.missing, options)
        except CALL_FAILED:
            if classes is None or not options:
                raise
            # A signal to all processes of the job ends its JVM, too, whatever the options.
            if has_live_jvm() or self._stop.made:
                end_jvm(lambda _: False)
                classes.settle(awaited=False, ended=False)
                raise
            classes.refused()
        _LOG.info(
            "Spark's JVM did not start with the file of saved classes (Java's class data"
            " sharing); it starts without the file, some seconds slower"
        )
        self._classes = None
        return open_session(self._config, archives, self._lease, self.missing)

    def close(self, session: SparkSession, *, may_learn: Callable[[], bool]) -> None:
        """Ends the session and its JVM.

        A JVM that writes its loaded classes to a file, for faster starts, gets more time to end as
        long as `may_learn` returns True.
        """
        classes = self._classes
        if classes is None or not classes.learning:
            close_session(session, self._config)
            return
        alive = has_live_jvm()

        def awaited() -> bool:
            return alive and may_learn()

        if awaited():
            _LOG.info(
                "Spark's JVM saves its loaded classes to a file (Java's class data sharing), so"
                " that later starts are faster; this takes some seconds, once"
            )
        ended = close_session(
            session, self._config, lambda seconds: awaited() and seconds < LEARNING_S
        )
        classes.settle(awaited=awaited(), ended=ended)
