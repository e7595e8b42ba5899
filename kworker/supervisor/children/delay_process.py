"""The delay process as a child: forked after the workers, and again whenever it has died."""

import signal
import time
from typing import Any

import structlog
from setproctitle import setproctitle

from kworker import log
from kworker.config.model import Config
from kworker.core.restart import StartAgain
from kworker.errors import ExitCode
from kworker.instance.child import exit_text, fork
from kworker.instance.exit_plan import for_stuck_process
from kworker.instance.host_lock import HostLock
from kworker.instance.proc import rss_bytes
from kworker.instance.scoreboard import Scoreboard, Text
from kworker.instance.scoreboard_fields import Field
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.children.fleet import ChildMain
from kworker.supervisor.children.worker_process import Death, ExitRequest, WorkerProcess
from kworker.supervisor.health import why_silent
from kworker.supervisor.limits import Limits

_LOG = structlog.get_logger()
_FORK_AGAIN_S = 1.0


class DelayChild:
    """Keeps the delay process running. Owned by the supervisor.

    If the process dies, delayed records wait in Kafka, and the service's state is red until the
    process is started again, after a back-off. If Kafka shuts the process out, because another copy
    of this instance uses the same identity, the whole service ends.
    """

    def __init__(
        self,
        config: Config,
        delay_main: ChildMain,
        folder: StateFolder,
        limits: Limits,
        lifeline: int,
        host_lock: HostLock,
    ) -> None:
        self._config = config
        self._delay_main = delay_main
        self._folder = folder
        self._limits = limits
        self._lifeline = lifeline
        self._host_lock = host_lock
        self._process = WorkerProcess(0, Scoreboard(1, hands=0).slots[0], limits.restart)
        self._process.start_at = None
        self._draining = False
        self._since = 0.0
        self._last_text = Text()  # of the last life, until this one writes its own

    @property
    def alive(self) -> bool:
        return self._process.alive

    def begin(self, now: float) -> None:
        """Makes the start of the delay process due, so that the next `turn` starts it."""
        self._process.start_at = now

    def apply(self, config: Config, now: float) -> None:
        """Replaces the process, at a reload or a restart, by a process with this configuration."""
        self._config = config
        self._process.start_afresh(now)
        self._process.drain(self._kill_at(now), leave=False)

    def turn(self, now: float) -> None:
        """Starts the process if its start is due; ends it if it is stuck or late to end."""
        process = self._process
        if signal.SIGKILL in process.send_due_signals(now):
            _LOG.warning(
                "the delay process did not end in time: killed, its records wait in Kafka",
                pid=process.pid,
            )
        elif process.start_at is not None and now >= process.start_at and not process.alive:
            self._start(now)
        elif problem := why_silent(process, self._limits, now, self._since):
            self._abort(problem, now)

    def reset_timers(self, now: float) -> None:
        """Restarts the timer for the process's heartbeats, because the supervisor was suspended."""
        self._since = now

    def drain(self, now: float, *, leave: bool) -> None:
        """Ends the process for good; with `leave`, it also leaves its consumer group."""
        self._draining, self._process.start_at = True, None
        self._process.drain(self._kill_at(now), leave=leave)

    def quit(self, now: float) -> None:
        """Ends the process for good, at once."""
        self._draining, self._process.start_at = True, None
        self._process.quit(now + self._limits.quit_s)

    @property
    def living(self) -> list[WorkerProcess]:
        """A list that holds the process, or an empty list if the process is not alive."""
        return [self._process] if self._process.alive else []

    def on_exit(self, pid: int, code: int, now: float) -> ExitCode | None:
        """Plans the next start if the reaped child is the delay process.

        Returns an exit code if the whole service must end, because Kafka fenced the process.
        """
        process = self._process
        if pid != process.pid:
            return None
        self._last_text = self._text()
        death = process.end_life(code, now)
        if self._draining:
            _LOG.info(f"the delay process ended ({exit_text(code)})")
        elif death.exit_request is ExitRequest.DRAIN:
            process.start_afresh(now)
        elif code == ExitCode.ALREADY_RUNNING:
            _LOG.error(
                "the delay process was fenced by another process with its identity: the service"
                " ends; give each copy of the service its own `instance`"
            )
            return ExitCode.ALREADY_RUNNING
        else:
            self._schedule_restart(death, now)
        return None

    def problems(self, now: float) -> list[str]:
        """Returns the problems of the delay process; any of them makes the service's state red."""
        process = self._process
        if process.alive:
            red = process.slot.words[Field.RED]
            return [f"delay: {problem}" for problem in self._text().problems] if red else []
        if not process.last_exit or process.start_at is None or process.start_at <= now:
            return []
        wait_s = process.start_at - now
        return [f"delay process exited ({process.last_exit}); next start in {wait_s:.0f} s"]

    def live_text(self) -> Text:
        """Returns the latest report of the living process; an empty one while none is alive."""
        return self._text() if self._process.alive else Text()

    def delay_rows(self) -> list[dict[str, Any]]:
        """Returns the value of `delays` in `status --json`.

        Without a process, the last known value is returned.
        """
        return [
            {"delay": delay, "waiting": waiting, "next_due_ms": due_ms}
            for delay, waiting, due_ms in self._text().delays
        ]

    def status(self, now: float) -> dict[str, Any]:
        """Returns the value of `delay` in `status --json`, which describes the delay process."""
        process = self._process
        return {
            "pid": process.pid,
            "phase": process.phase.name.lower(),
            "heartbeat_age_s": round(process.silent_s(now, 0.0), 3) if process.alive else None,
            "rss_bytes": rss_bytes(process.pid),
            "restarts": process.restarts,
            "replacements": process.replacements,
        }

    def _text(self) -> Text:
        return self._process.slot.read_text() if self._process.polled else self._last_text

    def _start(self, now: float) -> None:
        process, config = self._process, self._config
        process.slot.begin(0, time.monotonic_ns())
        try:
            pid = fork(lambda: self._run_child(config), keep=(self._lifeline, *self._host_lock.fds))
        except OSError as error:
            process.start_at = now + _FORK_AGAIN_S
            _LOG.warning(
                f"the delay process cannot be forked ({error.strerror});"
                f" next try in {_FORK_AGAIN_S:g} s"
            )
            return
        process.slot.words[Field.PID] = pid
        process.begin_life(pid, now)
        _LOG.info("the delay process started", delay_pid=pid)

    def _run_child(self, config: Config) -> int:
        setproctitle(f"kworker: delay [{config.name}] starting")
        log.identify(process="delay")
        self._folder.join_workers()
        self._host_lock.share()
        return self._delay_main(config, self._process.slot, self._lifeline)

    def _abort(self, problem: str, now: float) -> None:
        if self._process.exit_request in (ExitRequest.NONE, ExitRequest.DRAIN):
            _LOG.error(f"the delay process is stuck: it {problem}; dumping stacks, replacing it")
            limits = self._limits
            steps = for_stuck_process(now, limits.dump_s, limits.term_s, limits.abort_s)
            self._process.abort(steps, (), now)
            self._process.send_due_signals(now)

    def _schedule_restart(self, death: Death, now: float) -> None:
        answer = self._process.plan_restart(death, now)
        longest_s = self._limits.restart.longest_delay_s
        delay_s = answer.delay_s if isinstance(answer, StartAgain) else longest_s
        self._process.start_at = now + delay_s
        _LOG.warning(
            f"the delay process exited ({exit_text(death.code)}) after {death.life_s:.1f} s;"
            f" next start {f'in {delay_s:g} s' if delay_s else 'at once'}, due records wait"
        )

    def _kill_at(self, now: float) -> float:
        return now + self._config.workers.drain_timeout + self._limits.drain_margin_s
