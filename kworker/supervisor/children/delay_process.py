"""The delay process as a child: forked after the workers, and again whatever it dies of."""

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
from kworker.instance.scoreboard import Field, Scoreboard, Text
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.children.fleet import ChildMain
from kworker.supervisor.children.worker_process import Death, ExitRequest, WorkerProcess
from kworker.supervisor.health import why_silent
from kworker.supervisor.limits import Limits

_log = structlog.get_logger()
_FORK_AGAIN_S = 1.0


class DelayChild:
    """Keeps the delay process running. Owned by the supervisor.

    Its deaths cost a back-off and a red reason, and nothing else: what waits, waits in
    Kafka, and is overdue meanwhile. But where another process has its identity, the service
    came second, and ends.
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
        self._last_text = Text()  # by the last life, until this one tells

    @property
    def alive(self) -> bool:
        return self._process.alive

    def begin(self, now: float) -> None:
        """The service runs, so the delay process does."""
        self._process.start_at = now

    def apply(self, config: Config, now: float) -> None:
        """After a reload or a restart: the next life has this configuration, and new code."""
        self._config = config
        self._process.start_afresh(now)
        self._process.drain(self._kill_at(now), leave=False)

    def turn(self, now: float) -> None:
        """Starts it when it is due, ends it when it is stuck or did not end in its time."""
        process = self._process
        if signal.SIGKILL in process.send_due_signals(now):
            _log.warning("the delay process did not end in time: killed", pid=process.pid)
        elif process.start_at is not None and now >= process.start_at and not process.alive:
            self._start(now)
        elif why := why_silent(process, self._limits, now, self._since):
            self._abort(why, now)

    def reset_timers(self, now: float) -> None:
        """We were stopped ourselves: silence before now proves nothing."""
        self._since = now

    def drain(self, now: float, *, leave: bool) -> None:
        """It ends for ever; `leave` when the group shall not wait for it."""
        self._draining, self._process.start_at = True, None
        self._process.drain(self._kill_at(now), leave=leave)

    def quit(self, now: float) -> None:
        """At once."""
        self._draining, self._process.start_at = True, None
        self._process.quit(now + self._limits.quit_s)

    @property
    def living(self) -> list[WorkerProcess]:
        """It, if it has a process."""
        return [self._process] if self._process.alive else []

    def on_exit(self, pid: int, code: int, now: float) -> ExitCode | None:
        """A child was reaped: None, or the code with which the whole service must end."""
        process = self._process
        if pid != process.pid:
            return None
        self._last_text = self._text()
        death = process.end_life(code, now)
        if self._draining:
            _log.info(f"the delay process ended ({exit_text(code)})")
        elif death.exit_request is ExitRequest.DRAIN:
            process.start_afresh(now)
        elif code == ExitCode.ALREADY_RUNNING:
            _log.error(
                "the delay process was fenced by a twin of its identity: the service ends;"
                " give each its own `instance`"
            )
            return ExitCode.ALREADY_RUNNING
        else:
            self._schedule_restart(death, now)
        return None

    def problems(self, now: float) -> list[str]:
        """Why the service is red because of it."""
        process = self._process
        if process.alive:
            red = process.slot.words[Field.RED]
            return [f"delay: {reason}" for reason in self._text().problems] if red else []
        if not process.last_exit or process.start_at is None or process.start_at <= now:
            return []
        wait_s = process.start_at - now
        return [f"delay process exited ({process.last_exit}); next start in {wait_s:.0f} s"]

    def live_text(self) -> Text:
        """What it tells while it lives."""
        return self._text() if self._process.alive else Text()

    def delay_rows(self) -> list[dict[str, Any]]:
        """`delays` of `status --json`; while it is away, as it told last."""
        return [
            {"delay": delay, "waiting": waiting, "next_due_ms": due_ms}
            for delay, waiting, due_ms in self._text().delays
        ]

    def status(self, now: float) -> dict[str, Any]:
        """The process itself."""
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
            _log.warning(f"the delay process cannot be forked ({error.strerror}); tried again")
            return
        process.slot.words[Field.PID] = pid
        process.begin_life(pid, now)
        _log.info("the delay process started", delay_pid=pid)

    def _run_child(self, config: Config) -> int:
        """In the child."""
        setproctitle(f"kworker: delay [{config.name}] starting")
        log.identify(process="delay")
        self._folder.join_workers()
        self._host_lock.share()
        return self._delay_main(config, self._process.slot, self._lifeline)

    def _abort(self, why: str, now: float) -> None:
        if self._process.exit_request in (ExitRequest.NONE, ExitRequest.DRAIN):
            _log.error(f"the delay process {why}: stacks are dumped, it is replaced")
            limits = self._limits
            steps = for_stuck_process(now, limits.dump_s, limits.term_s, limits.abort_s)
            self._process.abort(steps, ())
            self._process.send_due_signals(now)

    def _schedule_restart(self, death: Death, now: float) -> None:
        answer = self._process.plan_restart(death, now)
        longest_s = self._limits.restart.longest_delay_s
        delay_s = answer.delay_s if isinstance(answer, StartAgain) else longest_s
        self._process.start_at = now + delay_s
        _log.warning(
            f"the delay process exited ({exit_text(death.code)}) after {death.life_s:.1f} s;"
            f" next start {f'in {delay_s:g} s' if delay_s else 'at once'}, what is due waits"
        )

    def _kill_at(self, now: float) -> float:
        return now + self._config.workers.drain_timeout + self._limits.drain_margin_s
