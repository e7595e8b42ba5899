"""The Spark job: one lease, one session, one query for each table, and the progress file."""

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event

import structlog
from pyspark.sql import SparkSession

from kworker.clients.leader import Leadership
from kworker.clients.offsets import TopicWatch, committed, connect
from kworker.clients.samples import record_bytes
from kworker.config.client_properties import admin_properties, leader_properties, table_group
from kworker.config.model import Config
from kworker.errors import ConfigError, KworkerError
from kworker.log.daemon_file import DaemonFile
from kworker.spark.batch_limits import BatchLimits
from kworker.spark.checkpoints.lease import Lease
from kworker.spark.launch import Launcher
from kworker.spark.plan import Planner
from kworker.spark.progress import JobState, ProgressFile, job_state, summary
from kworker.spark.query import TableQuery
from kworker.spark.reasons import reason
from kworker.spark.session.jvm import CALL_FAILED, OutOfMemory, await_jvm_end, check_jvm, is_local
from kworker.spark.session.opener import SessionOpener
from kworker.spark.session.session import count_executors
from kworker.spark.standby import POLL_S, Standby, leads, why_standby
from kworker.spark.stop import StopRequest
from kworker.spark.tables.sinks import trigger_of

_LOG = structlog.get_logger()

TURN_S = 0.5
NO_EXECUTORS_S = 15.0  # a cluster takes its time to start executors
CALM_S = 600.0  # after this long without running out of memory, larger batches are tried again
GRACE_S = 5.0  # for the batches being written when the job ends
SETTLE_S = 2.0


class Job:
    """Writes the tables until a stop is requested; with `once`, until they hold all results.

    Owned by the main thread. Raises ConfigError if only a change of the configuration can help,
    and other errors if a restart of the job may help.
    """

    def __init__(self, config: Config, stop: StopRequest, *, once: bool) -> None:
        if config.spark is None:
            raise ConfigError("spark: missing; add a section [spark] with [[spark.tables]]")
        self._config = config
        self._spark = config.spark
        self._stop = stop
        self._trigger = trigger_of(config.spark, once)
        self._once = self._trigger == "available-now"
        self._lease = Lease(config.spark.checkpoints)
        self._file = ProgressFile(config.state_dir)
        self._admin = connect(admin_properties(config))
        self._watch = TopicWatch(self._admin, config.delivery.results)
        self._queries: list[TableQuery] = []
        self._log_file = DaemonFile()
        sample = partial(record_bytes, admin_properties(config), config.delivery.results)
        self._limits = BatchLimits(config.spark, config.state_dir, sample)
        self._standby = Standby(config.state_dir, self._lease, stop, self._report)
        self._leadership: Leadership | None = None
        self._opener = SessionOpener(config, self._lease, stop)
        self._session: SparkSession | None = None
        self._calm_at = math.inf
        self._had_executors_at = 0.0  # or no batch waited for them
        self._positions_known = False
        self._topic_id = ""  # of the results topic at the last turn

    def run(self) -> None:
        """Waits until no other job may write, then runs the queries. Blocks until the job ends.

        The job waits for the lock of the checkpoints, and then for its election as the leader.
        """
        try:
            if not self._standby.await_lease():
                return
            # A job without the lease is no candidate: it could not do what a leader does.
            self._leadership = self._candidate()
            if not self._standby.await_leadership(self._leadership):
                return
            self._run_session()
        except OutOfMemory as error:
            batches = self._lower_limits()
            self._report(JobState.FAILED, f"{error}; {batches}")
            raise
        except KworkerError as error:
            self._report(JobState.FAILED, str(error))
            raise
        finally:
            if self._leadership is not None:
                self._leadership.close()
        self._report(JobState.STOPPED)

    def _candidate(self) -> Leadership:
        consumer, admin = leader_properties(self._config), admin_properties(self._config)
        return Leadership(consumer, admin, self._config.delivery.results)

    def _lower_limits(self) -> str:
        """Lowers the batch limits of the tables whose batches may have filled the memory.

        Returns a sentence that tells the user the new limits, or why they cannot be saved.
        """
        waiting = [q.progress for q in self._queries if q.progress.state is JobState.RUNNING]
        behind = {each.name: each.behind(self._watch.ends) or 0 for each in waiting}
        large = [each for each in waiting if 4 * behind[each.name] >= each.batch_records]
        suspects = large or [each for each in waiting if behind[each.name]]
        return self._limits.lower(
            {each.name: min(each.batch_records, behind[each.name]) for each in suspects}
        )

    @contextmanager
    def _polling_kafka(self) -> Iterator[None]:
        """Runs the leader election and watches the topic in a thread, during the `with` block."""
        done = Event()

        def turn() -> None:
            while self._leadership is not None and not done.wait(POLL_S):
                self._leadership.turn()
                self._watch.turn()

        with ThreadPoolExecutor(1, "kafka") as threads:
            turning = threads.submit(turn)
            try:
                yield
            finally:
                done.set()
        turning.result()

    def _run_session(self) -> None:
        self._report(JobState.STARTING)
        try:
            with self._polling_kafka():
                self._session = session = self._opener.open(learn=self._once)
        except KworkerError:
            if self._stop.made:
                return  # a signal to all processes of the job ends its JVM, too
            raise
        self._had_executors_at = time.monotonic()
        self._calm_at = time.monotonic() + CALM_S
        self._stop.listen()  # pyspark has taken INT
        try:
            self._queries = self._planner(session).plan()
            self._raise_if_all_misconfigured()
            while not self._stop.made and not self._all_done:
                self.turn(time.monotonic())
                self._log_file.turn(time.monotonic())
                self._raise_if_all_misconfigured()
                self._stop.wait(POLL_S if self._once else TURN_S)
            self._stop_queries()
            self._raise_failures()
        except CALL_FAILED as error:
            await_jvm_end()
            raise KworkerError(f"a call to Spark failed: {reason(error)}") from error
        finally:
            self._opener.close(session, may_learn=self._may_learn)

    def _planner(self, session: SparkSession) -> Planner:
        launcher = Launcher(session, self._config, self._watch, self._trigger, self._limits)
        missing = self._opener.missing
        return Planner(session, self._config, self._admin, launcher, self._limits, missing)

    def _may_learn(self) -> bool:
        """True if the JVM may save its loaded classes for faster starts.

        That is so if the job has written rows and no stop was requested.
        """
        return not self._stop.made and any(query.progress.rows for query in self._queries)

    @property
    def _all_done(self) -> bool:
        return all(map(self._is_done, self._queries))

    def _is_done(self, query: TableQuery) -> bool:
        """True if a query has finished; also if it has failed, in a job that ends by itself."""
        return query.finished or (self._once and query.has_failed)

    def _raise_if_all_misconfigured(self) -> None:
        if all(query.misconfigured for query in self._queries):
            raise ConfigError([query.progress.reason for query in self._queries])

    def _raise_failures(self) -> None:
        """Raises KworkerError if the query of a table has failed.

        Only does so in a job that ends by itself (`_once`), and only if no stop was requested.
        """
        if self._once and not self._stop.made:
            failed = [query.progress for query in self._queries if query.has_failed]
            if failed:
                raise KworkerError("\n".join(f"table {t.name}: {t.reason}" for t in failed))

    def turn(self, now: float) -> None:
        """Monitors the queries, starts those that are due, and reports the state of the job.

        Stops the queries if this job does not lead. Blocks for seconds only while a query starts.
        """
        check_jvm()
        if now >= self._calm_at:
            self._limits.forget()
            self._calm_at = math.inf
        if self._leadership is not None and not leads(self._leadership):
            self._stand_by(self._leadership)
            return
        self._watch.turn()
        self._check_topic()
        if self._watch.ends and not self._positions_known:
            self._read_positions()
        there = self._positions_known and not self._watch.problem
        for query in self._queries:
            if not self._is_done(query):
                query.turn(now, may_start=there)
        problem = self._watch.problem or self._executors_problem(now)
        self._report(job_state([query.progress for query in self._queries]), problem)

    def _stand_by(self, leadership: Leadership) -> None:
        """Stops the queries, since another job may write now.

        The queries start in a later turn, when this job leads again.
        """
        self._positions_known = False
        for query in self._queries:
            query.restart()
        state = job_state([query.progress for query in self._queries])
        state = state if leadership.problem else JobState.STANDBY
        self._report(state, why_standby(leadership))

    def _executors_problem(self, now: float) -> str:
        """A sentence for the user when batches wait and the cluster gives no executors; else ""."""
        if is_local(self._spark.master) or self._session is None:
            return ""
        waits = any(query.busy for query in self._queries)
        if not waits or count_executors(self._session):
            self._had_executors_at = now
        if now - self._had_executors_at < NO_EXECUTORS_S:
            return ""
        return (
            f"{self._spark.master} gives this job no executors, and batches wait: start workers"
            " there, or lower spark.executor.memory or spark.cores.max in [spark.conf]"
        )

    def _check_topic(self) -> None:
        """Restarts the queries when the results topic was deleted and created again.

        Otherwise they would continue at their old offsets, which now belong to other records.
        """
        if self._watch.topic_id != self._topic_id:
            self._topic_id = self._watch.topic_id
            self._positions_known = False
            for query in self._queries:
                query.restart()

    def _read_positions(self) -> None:
        """Reads each table's committed positions, for `status` and for the check of checkpoints."""
        properties, topic = admin_properties(self._config), self._config.delivery.results
        for query in self._queries:
            group = table_group(self._config, query.progress.name)
            found = committed(properties, group, topic, self._watch.ends)
            if found is None:
                return  # no answer: the next turn tries again
            query.progress.positions = found
        self._positions_known = True

    def _report(self, state: JobState, why: str = "") -> None:
        tables = [query.progress for query in self._queries]
        summaries = [summary(table, self._watch.ends) for table in tables]
        self._file.write(state, why, summaries)

    def _stop_queries(self) -> None:
        """Stops all queries; a batch not finished within GRACE_S is written at the next start."""
        deadline = time.monotonic() + GRACE_S
        running = list(self._queries)
        while running:
            late = time.monotonic() >= deadline
            for query in [query for query in running if late or not query.busy]:
                query.stop()
                running.remove(query)
            time.sleep(0.1 if running else 0)
        # The positions of a job in standby are old.
        if self._leadership is not None and self._leadership.leads:
            for query in self._queries:
                query.settle(SETTLE_S)
