"""Before the first fork: earlier workers must have ended, and the preflight check must pass."""

import selectors
import signal
from dataclasses import replace

import structlog

from kworker.config.model import Config
from kworker.instance.child import send_signal
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.limits import Limits
from kworker.supervisor.preflight_child import Check, Preflight, PreflightReport

_LOG = structlog.get_logger()


class Startup:
    """Waits until the workers of an earlier supervisor have ended and the preflight check passes.

    The supervisor uses it until its own workers start. `problems` has a line for each obstacle.
    """

    def __init__(
        self,
        config: Config,
        folder: StateFolder,
        preflight: Preflight,
        limits: Limits,
        selector: selectors.BaseSelector,
        now: float,
    ) -> None:
        self.config = config
        self.problems: list[str] = []
        self._folder = folder
        self._preflight = preflight
        self._limits = limits
        self._selector = selector
        self._leftovers_ended = False
        self._kill_at = now + config.workers.drain_timeout + limits.drain_margin_s
        self._check: Check | None = None
        self._check_at = now
        self._sessions_end_at: float | None = None  # of members on other hosts, if there are any

    def turn(self, now: float) -> PreflightReport | None:
        """Returns the report of a preflight check that passed, or None while the startup waits.

        Also returns a report with problems that do not go away by waiting.
        """
        if not self._leftovers_ended and not self._check_leftovers(now):
            return None
        if self._check is None:
            self._begin_when_due(now)
            return None
        report = self._check.turn(now)
        if report is None or report.problems or report.taken:
            return report
        maybe_alive = self._maybe_alive(report, now)
        if problems := report.unreachable + maybe_alive:
            self._check = None
            self._check_at = now + self._limits.check_every_s
            self._report(problems)
            return None
        return replace(report, taken=report.elsewhere)

    def _maybe_alive(self, report: PreflightReport, now: float) -> list[str]:
        """Returns a line for each consumer group member that may still live on another host."""
        if not report.elsewhere:
            self._sessions_end_at = None
            return []
        if self._sessions_end_at is None:
            self._sessions_end_at = now + report.session_s + self._limits.session_margin_s
        if now >= self._sessions_end_at:
            return []
        ends = f"if that host is dead, its session ends within {report.session_s:g} s"
        return [f"{line}; {ends}" for line in report.elsewhere]

    def on_exit(self, pid: int, code: int) -> None:
        """Passes a child's exit on to the preflight check, in case that child runs the check."""
        if self._check:
            self._check.on_exit(pid, code)

    def restart_check(self, config: Config, now: float) -> None:
        """Cancels the preflight check and begins it again, with this configuration."""
        self.cancel()
        self.config = config
        self._check = None
        self._check_at = now

    def cancel(self) -> None:
        if self._check:
            self._check.cancel()

    def _begin_when_due(self, now: float) -> None:
        if now >= self._check_at:
            limit_s = self._limits.check_s
            self._check = Check(self._preflight, self.config, self._selector, now, limit_s)

    def _check_leftovers(self, now: float) -> bool:
        self._leftovers_ended = self._folder.workers_gone()
        if self._leftovers_ended:
            self.problems = []
        elif not self.problems:
            pids = self._folder.leftover_workers()
            self._report([f"workers of an earlier supervisor are still draining (pids {pids})"])
        elif now >= self._kill_at:
            self._kill_leftovers()
        return self._leftovers_ended

    def _kill_leftovers(self) -> None:
        """Kills an earlier supervisor's workers, since they and new ones would fence each other."""
        for pid in self._folder.leftover_workers():
            _LOG.warning(
                "a worker of an earlier supervisor did not end in time: killed, so that new workers"
                " can start",
                leftover=pid,
            )
            send_signal(pid, signal.SIGKILL)

    def _report(self, problems: list[str]) -> None:
        if problems != self.problems:
            for problem in problems:
                _LOG.warning(f"workers cannot start yet, waiting: {problem}")
        self.problems = problems
