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
from kworker.instance.child import ended, fork
from kworker.instance.exit_plan import of_a_stuck_one
from kworker.instance.host_lock import HostLock
from kworker.instance.proc import rss_bytes
from kworker.instance.scoreboard import Field, Scoreboard, Text
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.children.fleet import ChildMain
from kworker.supervisor.children.worker_process import Asked, Death, WorkerProcess
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
        body: ChildMain,
        folder: StateFolder,
        limits: Limits,
        lifeline: int,
        host_lock: HostLock,
    ) -> None:
        self._config = config
        self._body = body
        self._folder = folder
        self._limits = limits
        self._lifeline = lifeline
        self._host_lock = host_lock
        self._member = WorkerProcess(0, Scoreboard(1, hands=0).slots[0], limits.restart)
        self._member.start_at = None
        self._ending = False
        self._since = 0.0
        self._told = Text()  # by the last life, until this one tells

    @property
    def alive(self) -> bool:
        return self._member.alive

    def begin(self, now: float) -> None:
        """The service runs, so the delay process does."""
        self._member.start_at = now

    def use(self, config: Config, now: float) -> None:
        """After a reload or a restart: the next life has this configuration, and new code."""
        self._config = config
        self._member.start_afresh(now)
        self._member.drain(self._kill_at(now), leave=False)

    def turn(self, now: float) -> None:
        """Starts it when it is due, ends it when it is stuck or did not end in its time."""
        member = self._member
        if signal.SIGKILL in member.press(now):
            _log.warning("the delay process did not end in time: killed", pid=member.pid)
        elif member.start_at is not None and now >= member.start_at and not member.alive:
            self._start(now)
        elif why := why_silent(member, self._limits, now, self._since):
            self._abort(why, now)

    def excuse(self, now: float) -> None:
        """We were stopped ourselves: silence before now proves nothing."""
        self._since = now

    def drain(self, now: float, *, leave: bool) -> None:
        """It ends for ever; `leave` when the group shall not wait for it."""
        self._ending, self._member.start_at = True, None
        self._member.drain(self._kill_at(now), leave=leave)

    def quit(self, now: float) -> None:
        """At once."""
        self._ending, self._member.start_at = True, None
        self._member.quit(now + self._limits.quit_s)

    @property
    def living(self) -> list[WorkerProcess]:
        """It, if it has a process."""
        return [self._member] if self._member.alive else []

    def died(self, pid: int, code: int, now: float) -> ExitCode | None:
        """A child was reaped: None, or the code with which the whole service must end."""
        member = self._member
        if pid != member.pid:
            return None
        self._told = self._text()
        death = member.dies(code, now)
        if self._ending:
            _log.info(f"the delay process ended ({ended(code)})")
        elif death.asked is Asked.DRAIN:
            member.start_afresh(now)
        elif code == ExitCode.ALREADY_RUNNING:
            _log.error(
                "the delay process was fenced by a twin of its identity: the service ends;"
                " give each its own `instance`"
            )
            return ExitCode.ALREADY_RUNNING
        else:
            self._mourn(death, now)
        return None

    def reasons(self, now: float) -> list[str]:
        """Why the service is red because of it."""
        member = self._member
        if member.alive:
            red = member.slot.words[Field.RED]
            return [f"delay: {reason}" for reason in self._text().reasons] if red else []
        if not member.why_dead or member.start_at is None or member.start_at <= now:
            return []
        wait_s = member.start_at - now
        return [f"delay process exited ({member.why_dead}); next start in {wait_s:.0f} s"]

    def told(self) -> Text:
        """What it tells while it lives."""
        return self._text() if self._member.alive else Text()

    def rows(self) -> list[dict[str, Any]]:
        """`delays` of `status --json`; while it is away, as it told last."""
        return [
            {"delay": delay, "waiting": waiting, "next_due_ms": due_ms}
            for delay, waiting, due_ms in self._text().delays
        ]

    def status(self, now: float) -> dict[str, Any]:
        """The process itself."""
        member = self._member
        return {
            "pid": member.pid,
            "phase": member.phase.name.lower(),
            "heartbeat_age_s": round(member.silent_s(now, 0.0), 3) if member.alive else None,
            "rss_bytes": rss_bytes(member.pid),
            "restarts": member.restarts,
            "replacements": member.replacements,
        }

    def _text(self) -> Text:
        return self._member.slot.read_text() if self._member.polled else self._told

    def _start(self, now: float) -> None:
        member, config = self._member, self._config
        member.slot.begin(0, time.monotonic_ns())
        try:
            pid = fork(lambda: self._live(config), keep=(self._lifeline, *self._host_lock.fds))
        except OSError as error:
            member.start_at = now + _FORK_AGAIN_S
            _log.warning(f"the delay process cannot be forked ({error.strerror}); tried again")
            return
        member.slot.words[Field.PID] = pid
        member.begins(pid, now)
        _log.info("the delay process started", delay_pid=pid)

    def _live(self, config: Config) -> int:
        """In the child."""
        setproctitle(f"kworker: delay [{config.name}] starting")
        log.identify(process="delay")
        self._folder.join_workers()
        self._host_lock.share()
        return self._body(config, self._member.slot, self._lifeline)

    def _abort(self, why: str, now: float) -> None:
        if self._member.asked in (Asked.NOTHING, Asked.DRAIN):
            _log.error(f"the delay process {why}: stacks are dumped, it is replaced")
            limits = self._limits
            steps = of_a_stuck_one(now, limits.dump_s, limits.term_s, limits.abort_s)
            self._member.abort(steps, ())
            self._member.press(now)

    def _mourn(self, death: Death, now: float) -> None:
        answer = self._member.judge(death, now)
        longest_s = self._limits.restart.longest_delay_s
        delay_s = answer.delay_s if isinstance(answer, StartAgain) else longest_s
        self._member.start_at = now + delay_s
        _log.warning(
            f"the delay process exited ({ended(death.code)}) after {death.life_s:.1f} s;"
            f" next start {f'in {delay_s:g} s' if delay_s else 'at once'}, what is due waits"
        )

    def _kill_at(self, now: float) -> float:
        return now + self._config.workers.drain_timeout + self._limits.drain_margin_s
