"""The job: one lease, one session, one query a table, and a progress file that tells of them."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kworker.clients.leader import Leadership
from kworker.clients.offsets import GroupOffsets, TopicWatch, committed, connect
from kworker.clients.samples import record_bytes
from kworker.config.client_properties import admin_properties, leader_properties
from kworker.config.model import Config, TableSettings
from kworker.errors import ConfigError, KworkerError, Unreachable
from kworker.jars import find_java
from kworker.spark.bounds import Bounds
from kworker.spark.checkpoints.lease import Lease
from kworker.spark.launch import Launcher
from kworker.spark.progress import (
    JobState,
    ProgressFile,
    TableProgress,
    job_state,
    read_progress,
    summary,
)
from kworker.spark.query import TableQuery
from kworker.spark.reasons import explained, reason
from kworker.spark.rows.frames import TableRows, results, table_rows
from kworker.spark.session.archives import archives_to_be_had
from kworker.spark.session.class_data import LEARNING_S, ClassData
from kworker.spark.session.jvm import (
    CALL_FAILED,
    OutOfMemory,
    await_jvm_end,
    check_jvm,
    end_jvm,
    has_live_jvm,
    has_own_jvm,
    is_local,
)
from kworker.spark.session.session import close_session, count_executors, open_session
from kworker.spark.stop import StopRequest
from kworker.spark.tables.sinks import Sink, sinks, trigger_of

_log = structlog.get_logger()

TURN_S = 0.5
UNMANNED_S = 15.0  # a cluster takes its time to start them
CALM_S = 600.0  # so long the memory lasts: the next start may try larger batches
STANDBY_S = 1.0
HEARD_S = 2.0  # by then a group has said who leads it
HEARING_S = 0.1
GRACE_S = 5.0  # for the batches in hand, when the job shall end
SETTLE_S = 2.0


class Job:
    """Runs until it is told to stop; with `once`, until the tables hold what is there now.

    Owned by the main thread. Raises ConfigError for what only a change of the file can mend,
    other errors for what a new process may mend.
    """

    def __init__(self, config: Config, stop: StopRequest, *, once: bool) -> None:
        if config.spark is None:
            raise ConfigError("spark: missing; give a [spark] table with [[spark.tables]]")
        self._config = config
        self._spark = config.spark
        self._stop = stop
        self._trigger = trigger_of(config.spark, once)
        self._once = self._trigger == "available-now"
        self._lease = Lease(config.spark.checkpoints)
        self._file = ProgressFile(config.state_dir)
        self._client = connect(admin_properties(config))
        self._watch = TopicWatch(self._client, config.delivery.results)
        self._queries: list[TableQuery] = []
        sample = partial(record_bytes, admin_properties(config), config.delivery.results)
        self._bounds = Bounds(config.spark, config.state_dir, sample)
        self._leadership: Leadership | None = None
        self._session: SparkSession | None = None
        self._classes: ClassData | None = None
        self._missing: dict[str, Unreachable] = {}  # archives, by the format of tables
        self._calm_at = math.inf
        self._manned_at = 0.0  # a batch last had executors, or there was none
        self._recalled = False
        self._topic_id = ""  # of the topic as it was seen last

    def run(self) -> None:
        """Everything; blocks until the end. The lease lasts as long as process and JVM."""
        try:
            if not self._await_lease() or not self._await_turn():
                return
            self._run_session()
        except OutOfMemory as error:
            batches = self._lower()
            self._tell(JobState.FAILED, f"{error}; {batches}")
            raise
        except KworkerError as error:
            self._tell(JobState.FAILED, str(error))
            raise
        finally:
            if self._leadership is not None:
                self._leadership.close()
        self._tell(JobState.STOPPED)

    def _lower(self) -> str:
        """Of what was being written in large batches: nobody tells which was too large."""
        waiting = [q.progress for q in self._queries if q.progress.state is JobState.RUNNING]
        behind = {each.name: each.behind(self._watch.ends) or 0 for each in waiting}
        large = [each for each in waiting if 4 * behind[each.name] >= each.batch_records]
        guilty = large or [each for each in waiting if behind[each.name]]
        return self._bounds.lower(
            {each.name: min(each.batch_records, behind[each.name]) for each in guilty}
        )

    def _await_lease(self) -> bool:
        """False when the job was stopped before it got the lease."""
        told = False
        while not self._take_lease():
            if not told:
                holder = self._lease.holder()
                _log.info("standby: another has the checkpoints", holder=str(holder or "not known"))
                told = True
            self._tell_standby()
            if self._stop.wait(STANDBY_S):
                return False
        return True

    def _take_lease(self) -> bool:
        try:
            return self._lease.take()
        except OSError as error:
            raise KworkerError(f"spark.checkpoints: {self._spark.checkpoints}: {error}") from error

    def _tell_standby(self) -> None:
        """Unless the holder tells its own progress in the same file."""
        told = read_progress(self._config.state_dir) or {}
        holder = self._lease.holder()
        if holder is None or holder.gone or told.get("pid") != holder.pid:
            who = holder or "another process"
            self._tell(JobState.STANDBY, f"{who} holds {self._spark.checkpoints}")

    def _await_turn(self) -> bool:
        """Waits while another job leads; false when the job was stopped meanwhile.

        Who has no lease is no candidate: it could not do what it would be chosen for.
        """
        consumer, admin = leader_properties(self._config), admin_properties(self._config)
        topic = self._config.delivery.results
        self._leadership = leadership = Leadership(consumer, admin, topic)
        heard_by = time.monotonic() + HEARD_S
        told = ""
        while not self._leads(leadership):
            late = time.monotonic() > heard_by
            if not leadership.leader and (leadership.problem or late):
                return True  # Spark may start meanwhile
            why = self._why_standby(leadership)
            if leadership.leader and why != told:
                _log.info(f"standby: {why}")
                told = why
            self._tell(JobState.STANDBY, why)
            if self._stop.wait(HEARING_S):
                return False
        return True

    @contextmanager
    def _heard_meanwhile(self) -> Iterator[None]:
        """Takes the turns of a candidate and of the topic while the main thread is busy."""
        done = Event()

        def turn() -> None:
            while self._leadership is not None and not done.wait(HEARING_S):
                self._leadership.turn()
                self._watch.turn()

        with ThreadPoolExecutor(1, "kafka") as threads:
            turning = threads.submit(turn)
            try:
                yield
            finally:
                done.set()
        turning.result()

    def _leads(self, leadership: Leadership) -> bool:
        leadership.turn()
        return leadership.leads

    def _why_standby(self, leadership: Leadership) -> str:
        leader = leadership.leader
        return leadership.problem or (f"{leader} leads" if leader else "nobody leads yet")

    def _run_session(self) -> None:
        self._tell(JobState.STARTING)
        with self._heard_meanwhile():
            self._session = session = self._open()
        self._manned_at = time.monotonic()
        self._calm_at = time.monotonic() + CALM_S
        self._stop.listen()  # pyspark has taken INT
        try:
            self._queries = self._plan(session)
            self._end_if_all_are_mistaken()
            while not self._stop.made and not self._finished:
                self.turn(time.monotonic())
                self._end_if_all_are_mistaken()
                self._stop.wait(HEARING_S if self._once else TURN_S)
            self._end()
            self._raise_failures()
        except CALL_FAILED as error:
            await_jvm_end()
            raise KworkerError(f"Spark: {reason(error)}") from error
        finally:
            self._close(session)

    def _open(self) -> SparkSession:
        found, self._missing = archives_to_be_had(
            self._spark.tables, progress=lambda text: _log.info(text)
        )
        if has_own_jvm(self._spark):
            self._classes = ClassData(self._spark.conf, found)
        try:
            return self._started(found)
        except CALL_FAILED as error:
            find_java()  # when that is the reason, it says so
            raise KworkerError(f"Spark does not start: {reason(error)}") from error

    def _started(self, archives: Sequence[Path]) -> SparkSession:
        classes = self._classes
        options = classes.option(learn=self._once) if classes else ""
        try:
            return open_session(self._config, archives, self._lease, self._missing, options)
        except CALL_FAILED:
            if classes is None or not options:
                raise
            if has_live_jvm():
                end_jvm(lambda _: False)
                classes.settle(awaited=False, ended=False)
                raise
            classes.refused()
        _log.info("Spark's JVM does not start with kept classes, and is started without them")
        self._classes = None
        return open_session(self._config, archives, self._lease, self._missing)

    def _close(self, session: SparkSession) -> None:
        """A job that has written, and ends by itself, may take longer for the next to take less."""
        classes = self._classes
        if classes is None or not classes.learning:
            close_session(session, self._config)
            return
        wrote = any(query.progress.rows for query in self._queries) and has_live_jvm()
        if wrote and not self._stop.made:
            _log.info("Spark's classes are kept for faster starts: once, for some seconds")

        def awaited() -> bool:
            return wrote and not self._stop.made

        ended = close_session(
            session, self._config, lambda seconds: awaited() and seconds < LEARNING_S
        )
        classes.settle(awaited=awaited(), ended=ended)

    @property
    def _finished(self) -> bool:
        return all(map(self._ended, self._queries))

    def _ended(self, query: TableQuery) -> bool:
        """Whether there is nothing more to wait for; a job that goes on never gives one up."""
        return query.finished or (self._once and query.hopeless)

    def _end_if_all_are_mistaken(self) -> None:
        if all(query.mistaken for query in self._queries):
            raise ConfigError([query.progress.reason for query in self._queries])

    def _raise_failures(self) -> None:
        """Of a job that ended by itself: the other tables are complete."""
        if self._once and not self._stop.made:
            failed = [query.progress for query in self._queries if query.hopeless]
            if failed:
                raise KworkerError("\n".join(f"table {t.name}: {t.reason}" for t in failed))

    def turn(self, now: float) -> None:
        """Looks after everything once; blocks for seconds only while a query starts."""
        check_jvm()
        if now >= self._calm_at:
            self._bounds.forget()
            self._calm_at = math.inf
        if self._leadership is not None and not self._leads(self._leadership):
            self._stand_by(self._leadership)
            return
        self._watch.turn()
        self._look_for_another_topic()
        if self._watch.ends and not self._recalled:
            self._recall()
        there = self._recalled and not self._watch.problem
        for query in self._queries:
            if not self._ended(query):
                query.turn(now, may_start=there)
        problem = self._watch.problem or self._wanting_executors(now)
        self._tell(job_state([query.progress for query in self._queries]), problem)

    def _stand_by(self, leadership: Leadership) -> None:
        """Another job may write by now: queries are examined anew when this one leads again."""
        self._recalled = False
        for query in self._queries:
            query.again()
        state = job_state([query.progress for query in self._queries])
        state = state if leadership.problem else JobState.STANDBY
        self._tell(state, self._why_standby(leadership))

    def _wanting_executors(self, now: float) -> str:
        """A line where batches wait, and the cluster has given nobody to write them."""
        if is_local(self._spark.master) or self._session is None:
            return ""
        waits = any(query.busy for query in self._queries)
        if not waits or count_executors(self._session):
            self._manned_at = now
        if now - self._manned_at < UNMANNED_S:
            return ""
        return (
            f"{self._spark.master} gives this job no executors, and batches wait: start workers"
            " there, or ask for less, by spark.executor.memory or spark.cores.max in [spark.conf]"
        )

    def _look_for_another_topic(self) -> None:
        """Of the same name: running queries would go on at their offsets, in other records."""
        if self._watch.topic_id != self._topic_id:
            self._topic_id = self._watch.topic_id
            self._recalled = False
            for query in self._queries:
                query.again()

    def _recall(self) -> None:
        """How far the tables were before, for people and for the guards of their checkpoints."""
        properties, topic = admin_properties(self._config), self._config.delivery.results
        for query in self._queries:
            group = self._group(query.progress.name)
            found = committed(properties, group, topic, self._watch.ends)
            if found is None:
                return  # nobody answers: asked again at the next turn
            query.progress.positions = found
        self._recalled = True

    def _group(self, table: str) -> str:
        return f"{self._config.name}.spark.{table}"

    def _tell(self, state: JobState, why: str = "") -> None:
        tables = [query.progress for query in self._queries]
        told = [summary(table, self._watch.ends) for table in tables]
        self._file.write(state, why, told)

    def _plan(self, session: SparkSession) -> list[TableQuery]:
        """The queries, not started yet; a table that cannot be made is refused by itself."""
        stream = results(session, self._config, self._spark.batch_records)
        launcher = Launcher(session, self._config, self._watch, self._trigger, self._bounds)
        planned = []
        for sink in sinks(self._spark):
            progress = TableProgress(sink.table.name)
            try:
                self._expect_archives(sink.table)
                rows = table_rows(stream, sink.table, self._config)
            except ValueError as error:
                query = self._query(sink, progress, _never)
                query.refuse(f"spark.tables[{progress.name}].{error}")
            else:
                self._warn_of_repeats(sink.table, rows)
                launch = partial(launcher.launch, sink, progress)
                query = self._query(sink, progress, launch)
            planned.append(query)
        return planned

    def _expect_archives(self, table: TableSettings) -> None:
        """ValueError when those of its format are not to be had."""
        if error := self._missing.get(table.format):
            why = str(error).partition(";")[0]  # then come Ivy's own words
            raise ValueError(f"format: {why}; let it be fetched once, then start the job again")

    def _warn_of_repeats(self, table: TableSettings, rows: TableRows) -> None:
        if rows.counts_again and self._config.delivery.guarantee == "at-least-once":
            _log.warning(
                "a result that comes again counts again in this table: set dedupe = true for it,"
                ' or delivery.guarantee = "exactly-once"',
                table=table.name,
            )

    def _query(
        self, sink: Sink, progress: TableProgress, launch: Callable[[], StreamingQuery]
    ) -> TableQuery:
        group = GroupOffsets(
            self._client, self._group(progress.name), self._config.delivery.results
        )
        explain = partial(explained, sink.table, sink.checkpoint)

        def misjudged() -> bool:
            return self._bounds.misjudged(sink.table, progress.batch_records, *progress.last)

        def lower() -> str:
            return self._bounds.lower({progress.name: progress.batch_records})

        return TableQuery(progress, launch, explain, group, misjudged, lower)

    def _end(self) -> None:
        """Lets the batches in hand finish, within the time of grace; the rest comes again."""
        deadline = time.monotonic() + GRACE_S
        running = list(self._queries)
        while running:
            late = time.monotonic() >= deadline
            for query in [query for query in running if late or not query.busy]:
                query.stop()
                running.remove(query)
            time.sleep(0.1 if running else 0)
        # What one that stands by knows is old.
        if self._leadership is not None and self._leadership.leads:
            for query in self._queries:
                query.settle(SETTLE_S)


def _never() -> StreamingQuery:
    raise AssertionError("a table that was refused is not started")
