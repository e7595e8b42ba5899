"""One table's streaming query: started, monitored, and restarted after a passing error."""

import json
import re
from collections.abc import Callable, Iterator, Sequence

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from kworker.clients.offsets import GroupOffsets
from kworker.core.restart import Backoff
from kworker.errors import ConfigError
from kworker.spark.checkpoints.checked_files import Damaged
from kworker.spark.progress import JobState, TableProgress
from kworker.spark.reasons import reason
from kworker.spark.rows.transforms import TransformRaised
from kworker.spark.session.jvm import CALL_FAILED, check_jvm
from kworker.spark.tables.examiner import ResultsSetAside
from kworker.spark.tables.fences import TableFenced

_LOG = structlog.get_logger()

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
CALM_S = 60.0
RENEW_S = 3600.0
_SET_ASIDE = re.compile(
    rf"^{re.escape(ResultsSetAside.__module__)}\.{ResultsSetAside.__name__}: ", re.M
)
_OF_MEMORY = re.compile(r"OutOfMemoryError|SparkOutOfMemory")
MEASURED_S = 30.0  # after a start the size of results is not checked for this long
FAILURES_MAX = 5  # in a row: then a job that ends by itself gives the table up


class TableQuery:
    """Runs one table's streaming query, and starts it again after an error.

    Owned by the job's main thread, which calls `turn` about every second; the query itself runs in
    the JVM. `launch` starts the query. It raises ConfigError for an error that only a change of the
    configuration can repair, Damaged if a person must repair the checkpoint, and TableFenced,
    TransformRaised or Spark's errors if a later start may succeed. `explain` turns the causes of an
    exception into one line. `resize` is called after a batch, and returns True if the next batches
    are to take another number of records. `lower` is called when a batch ran out of memory, and
    returns a sentence that reports the smaller batches.
    """

    def __init__(
        self,
        progress: TableProgress,
        launch: Callable[[], StreamingQuery],
        explain: Callable[[Sequence[str]], str],
        group: GroupOffsets,
        resize: Callable[[], bool],
        lower: Callable[[], str],
    ) -> None:
        self.progress = progress
        self._resize = resize
        self._lower = lower
        self._failures = 0  # in a row, without a batch between them
        self._launch = launch
        self._explain = explain
        self._group = group
        self._query: StreamingQuery | None = None
        self._backoff = Backoff(FIRST_DELAY_S, LONGEST_DELAY_S, CALM_S)
        self._started = 0.0
        self._due = 0.0
        self._renew_at = 0.0
        self._ran = False
        self.misconfigured = False  # only a change of the file can repair it
        self._foreign_warned = 0

    @property
    def finished(self) -> bool:
        """True if the query has ended without an error: it has read all results, or was stopped."""
        return self.progress.state is JobState.STOPPED

    @property
    def has_failed(self) -> bool:
        """True if the query's state is FAILED, or if it failed FAILURES_MAX times in a row."""
        return self.progress.state is JobState.FAILED or self._failures >= FAILURES_MAX

    @property
    def busy(self) -> bool:
        """True while a batch is being written."""
        return self._query is not None and bool(self._query.status["isTriggerActive"])

    def turn(self, now: float, *, may_start: bool) -> None:
        """Monitors the running query, or starts it if a start is due and `may_start` is True.

        For a running query, adds finished batches to the progress and commits the positions to the
        table's consumer group. For one that ended with an error, sets the time of its next start.
        """
        if self.finished or self.misconfigured:
            return
        if self._query is not None:
            self._monitor(self._query, now)
        elif may_start and now >= self._due:
            self._start(now)

    def refuse(self, problem: str) -> None:
        """Marks the table as failed for good: only a change of the configuration can repair it."""
        self.misconfigured = True
        self.progress.state, self.progress.reason = JobState.FAILED, problem
        _LOG.error(
            "the settings of this table are wrong, so it is not written; other tables go on",
            table=self.progress.name,
            reason=problem,
        )

    def restart(self) -> None:
        """Stops the query, so that a later call of `turn` starts the query again.

        That start checks the checkpoint first.
        """
        if self._query is not None:
            self._stop(self._query)
            self._query = None
            self.progress.state = JobState.RESTARTING

    def stop(self) -> None:
        """Stops the query; a batch that is not finished is written at the next start."""
        if self._query is not None:
            self._stop(self._query)
            self._query = None
        if self.has_failed:
            self.progress.state = JobState.FAILED
        else:
            self.progress.state = JobState.STOPPED
            self.progress.reason = ""

    def _stop(self, query: StreamingQuery) -> None:
        try:
            query.stop()
            self._read_batches(query)
        except CALL_FAILED as error:
            _LOG.warning(
                "the query did not stop in time; its batch is written again at the next start",
                table=self.progress.name,
                reason=reason(error),
            )

    def settle(self, timeout_s: float) -> None:
        """Commits the table's positions to its consumer group for the last time.

        Waits for `timeout_s` at most.
        """
        self._group.settle(self.progress.positions, timeout_s)

    def _start(self, now: float) -> None:
        self._started = now
        try:
            self._query = self._launch()
        except ConfigError as error:
            if self._ran:
                # The file was valid before: something else has changed, and may change back.
                self._note_failure(str(error), now)
            else:
                self.refuse(str(error))
            return
        except Damaged as error:
            self._note_failure(str(error), now)
            self.progress.state = JobState.FAILED
            return
        except (TableFenced, TransformRaised) as error:
            self._note_failure(str(error), now)
            return
        except CALL_FAILED as error:
            check_jvm()
            self._note_failure(reason(error), now)
            return
        self._ran = True
        self.progress.state = JobState.RUNNING
        self.progress.reason = ""

    def _monitor(self, query: StreamingQuery, now: float) -> None:
        active = query.isActive
        news = self._read_batches(query)
        self._publish(now)
        if active:
            if news and now >= self._started + MEASURED_S:
                self._check_size()
            return
        self._query = None
        error = query.exception()
        if error is None:
            self.progress.state = JobState.STOPPED
        else:
            said = [str(error), *causes(query)]
            if any(map(_SET_ASIDE.search, said)):
                self._due = now  # no failure: the batch is written again without those results
                self.progress.state = JobState.RESTARTING
                return
            lowered = f"; {self._lower()}" if any(map(_OF_MEMORY.search, said)) else ""
            self._note_failure(f"{self._explain(said)}{lowered}", now)

    def _publish(self, now: float) -> None:
        if now >= self._renew_at:
            self._group.forget_published()
            self._renew_at = now + RENEW_S
        self._group.publish(self.progress.positions)

    def _note_failure(self, why: str, now: float) -> None:
        delay_s = self._backoff.failed(now - self._started)
        self._due = now + delay_s
        self._failures += 1
        self.progress.state = JobState.RESTARTING
        self.progress.reason = why
        _LOG.warning(
            "the query of the table failed; it starts again",
            table=self.progress.name,
            reason=why,
            next_start_s=delay_s,
        )

    def _check_size(self) -> None:
        """Calls `resize`; if it returns True, restarts the query with smaller or larger batches."""
        if self._resize():
            records, size = self.progress.last
            _LOG.info(
                "results differ in size from the estimate; the query restarts with other batch"
                " limits",
                table=self.progress.name,
                last_batch_records=records,
                last_batch_bytes=size,
            )
            self.restart()

    def _read_batches(self, query: StreamingQuery) -> bool:
        """Adds Spark's reports of new batches to the progress; True if there were any."""
        last = query._jsq.lastProgress()
        if last is None or last.batchId() == self.progress.batch:
            return False
        news = False
        for report in query._jsq.recentProgress():
            if self.progress.add_batch(json.loads(report.json())):
                self._failures, news = 0, True
        self._warn_of_foreign()
        return news

    def _warn_of_foreign(self) -> None:
        foreign = self.progress.foreign
        if foreign > self._foreign_warned:
            _LOG.warning(
                "records are left out of the table: in the results topic they are without a valid"
                " kworker-source header, so no worker wrote them",
                table=self.progress.name,
                records=foreign - self._foreign_warned,
            )
            self._foreign_warned = foreign


def causes(query: StreamingQuery) -> Iterator[str]:
    """The Java causes of the exception that ended a query, down to the root cause."""
    cause = query._jsq.exception().get().getCause()
    while cause is not None:
        yield str(cause.toString())
        cause = cause.getCause()
