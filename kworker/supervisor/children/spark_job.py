"""The Spark job as a child process: started by exec, and started again after it has died."""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from kworker.config.model import Config
from kworker.core.restart import Backoff
from kworker.errors import ExitCode
from kworker.instance.child import exit_text, kill_group, send_signal, spawn
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.limits import Limits

COMMAND = (sys.executable, "-P", "-m", "kworker.spark")  # -P: the working folder is not on the path
_LOG = structlog.get_logger()
_PROGRESS_BYTES_MAX = 1 << 20


class SparkJob:
    """Keeps the Spark job, `python -m kworker.spark`, running. Owned by the supervisor.

    Workers do not depend on the job. If it dies, results wait in their topic, and the service's
    state is red until the job is started again, after a back-off.
    """

    def __init__(
        self, config: Config, command: Sequence[str], folder: StateFolder, limits: Limits
    ) -> None:
        self._config = config
        self._command = command
        self._folder = folder
        self._limits = limits
        self._pid: int | None = None
        self._started = 0.0
        self._start_at: float | None = None
        self._kill_at: float | None = None
        self._backoff = self._new_backoff()
        self._state = "off"
        self._problem = ""

    @property
    def alive(self) -> bool:
        return self._pid is not None

    @property
    def problems(self) -> list[str]:
        """The problems of the job and of its tables; any of them makes the service's state red."""
        if self._problem:
            return [f"spark: {self._problem}"]
        progress = self._progress()
        own = "" if _is_standby(progress) else progress.get("reason")
        found = [own, *(_table_problem(t) for t in _tables(progress))]
        return [f"spark: {problem}" for problem in found if problem]

    def begin(self, now: float) -> None:
        """Makes the start of the job due at the next `turn`, if the job is to run on this host."""
        spark = self._config.spark
        if spark and spark.run == "here":
            self._start_at = now
            self._state = "starting"
        elif spark:
            self._state = "elsewhere"

    def apply(self, config: Config, now: float) -> None:
        """Restarts the job at a reload, if its settings have changed or the job had failed."""
        before, self._config = self._config, config
        if _settings_of(before) == _settings_of(config) and self._state != "failed":
            return
        self._backoff = self._new_backoff()
        self._problem, self._state, self._start_at = "", "off", None
        self.begin(now)
        self._terminate(now)

    def turn(self, now: float) -> None:
        """Starts the job if its start is due; kills it if it did not end in time."""
        if self._start_at is not None and now >= self._start_at and not self.alive:
            self._start(now)
        if self._kill_at is not None and now >= self._kill_at and self._pid:
            _LOG.warning("the Spark job did not end in time: killed, results wait in their topic")
            self._kill_at = now + self._limits.spark_stop_s
            kill_group(self._pid)  # with its JVM and its Python workers

    def stop(self, now: float) -> None:
        """Ends the job for good, without waiting until it has read all results."""
        self._start_at = None
        self._state = "stopped" if self.alive else self._state
        self._terminate(now)

    def quit(self) -> None:
        """Kills the job at once."""
        self._start_at = None
        if self._pid:
            kill_group(self._pid)

    def on_exit(self, pid: int, code: int, now: float) -> None:
        """Decides if and when the job starts again, if the reaped child is the job."""
        if pid != self._pid:
            return
        reported = self._progress().get("reason")
        self._pid = None
        stopping, self._kill_at = self._kill_at is not None, None
        if stopping or self._state == "stopped":
            return
        if code == ExitCode.CONFIG:
            self._state, self._start_at = "failed", None
            self._problem = "the job rejected its configuration, see the log: fix it, then reload"
            _LOG.error(
                "the configuration of the Spark job is wrong, see its log above; correct it, then"
                " kworker reload starts the job"
            )
            return
        if code == ExitCode.OK:  # `available-now`: the job has read what was there, and runs again
            self._start_at = now + self._limits.restart.longest_delay_s
            return
        delay_s = self._backoff.failed(now - self._started)
        self._state, self._start_at = "restarting", now + delay_s
        cause = f"{exit_text(code)}: {reported}" if reported else exit_text(code)
        self._problem = f"the job exited ({cause})"
        _LOG.warning(f"the Spark job exited ({cause}); next start in {delay_s:g} s, workers go on")

    def status(self) -> dict[str, Any]:
        """Returns the value of `spark` in `status --json`: the state and the report of the job."""
        progress = self._progress()
        state = progress.get("state") or self._state
        reason = self._problem or (progress["reason"] if _is_standby(progress) else "")
        tables = [dict(table) for table in _tables(progress)]
        return {"state": state, "pid": self._pid, "reason": reason, "tables": tables}

    def _start(self, now: float) -> None:
        environment = {**os.environ, "KWORKER_PARENT_PID": str(os.getpid())}
        argv = [*self._command, "--config", str(self._config.file)]
        try:
            self._pid = spawn(argv, environment)
        except OSError as error:
            delay_s = self._backoff.failed(0)
            self._start_at = now + delay_s
            _LOG.warning(f"cannot fork the Spark job ({error.strerror}); next try in {delay_s:g} s")
            return
        self._started = now
        self._start_at = None
        self._state, self._problem = "starting", ""
        _LOG.info("the Spark job started", spark_pid=self._pid)

    def _terminate(self, now: float) -> None:
        if self._pid and self._kill_at is None:
            self._kill_at = now + self._limits.spark_stop_s
            send_signal(self._pid, signal.SIGTERM)

    def _progress(self) -> dict[str, Any]:
        """Returns the progress report that this run of the job wrote; {} if there is none."""
        if self._state in ("off", "failed", "restarting"):
            return {}
        try:
            with self._folder.spark_progress.open("rb") as file:
                progress = json.loads(file.read(_PROGRESS_BYTES_MAX))
        except (OSError, ValueError):
            return {}
        mine = isinstance(progress, dict) and (progress.get("pid") == self._pid or not self.alive)
        return progress if mine else {}

    def _new_backoff(self) -> Backoff:
        policy = self._limits.restart
        return Backoff(policy.first_delay_s, policy.longest_delay_s, calm_s=60.0)


def _settings_of(config: Config) -> tuple[object, ...]:
    return config.spark, config.kafka, config.delivery, config.file


def _tables(progress: dict[str, Any]) -> list[dict[str, Any]]:
    tables = progress.get("tables")
    return [table for table in tables if isinstance(table, dict)] if tables else []


def _is_standby(progress: Mapping[str, Any]) -> bool:
    """Returns True if the job is in standby, which is no problem.

    It waits until no other job holds its checkpoints, or until it is the leader. The `reason` in
    the job's report says what it waits for.
    """
    return progress.get("state") == "standby"


def _table_problem(table: dict[str, Any]) -> str:
    reason = table.get("reason")
    return f"table {table.get('name')}: {reason}" if reason else ""
