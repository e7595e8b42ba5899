"""What must be so before the first worker is forked: no leftovers, and a preflight that is fine."""

import selectors
import signal
from dataclasses import replace

import structlog

from kworker.config.model import Config
from kworker.instance.child import send
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.limits import Limits
from kworker.supervisor.preflight_child import Check, Preflight, PreflightReport

_log = structlog.get_logger()


class Startup:
    """Waits, and says what for. Owned by the supervisor until the workers start."""

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
        self.reasons: list[str] = []
        self._folder = folder
        self._preflight = preflight
        self._limits = limits
        self._selector = selector
        self._alone = False
        self._kill_at = now + config.workers.drain_timeout + limits.drain_margin_s
        self._check: Check | None = None
        self._check_at = now
        self._dead_by: float | None = None  # those elsewhere, if they are

    def turn(self, now: float) -> PreflightReport | None:
        """The report to act on: one that waiting cannot better. None while there is none."""
        if not self._alone and not self._leftovers_gone(now):
            return None
        if self._check is None:
            self._begin_when_due(now)
            return None
        report = self._check.turn(now)
        if report is None or report.problems or report.taken:
            return report
        perhaps_dead = self._perhaps_dead(report, now)
        if reasons := report.unreachable + perhaps_dead:
            self._check = None
            self._check_at = now + self._limits.check_every_s
            self._wait_for(reasons)
            return None
        return replace(report, taken=report.elsewhere)

    def _perhaps_dead(self, report: PreflightReport, now: float) -> list[str]:
        """Members on other hosts, as long as their sessions may only not have ended yet."""
        if not report.elsewhere:
            self._dead_by = None
            return []
        if self._dead_by is None:
            self._dead_by = now + report.session_s + self._limits.session_margin_s
        if now >= self._dead_by:
            return []
        ends = f"if that host is dead, its session ends within {report.session_s:g} s"
        return [f"{line}; {ends}" for line in report.elsewhere]

    def died(self, pid: int, code: int) -> None:
        """A child was reaped, ours or another's."""
        if self._check:
            self._check.died(pid, code)

    def begin_again(self, config: Config, now: float) -> None:
        """With another configuration, at once."""
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

    def _leftovers_gone(self, now: float) -> bool:
        self._alone = self._folder.workers_gone()
        if self._alone:
            self.reasons = []
        elif not self.reasons:
            pids = self._folder.leftover_workers()
            self._wait_for([f"workers of an earlier supervisor are still draining (pids {pids})"])
        elif now >= self._kill_at:
            self._kill_leftovers()
        return self._alone

    def _kill_leftovers(self) -> None:
        """They had their drain_timeout, and with the same identity as ours they would fence us."""
        for pid in self._folder.leftover_workers():
            _log.warning("a worker of an earlier supervisor did not end: killed", leftover=pid)
            send(pid, signal.SIGKILL)

    def _wait_for(self, reasons: list[str]) -> None:
        if reasons != self.reasons:
            for reason in reasons:
                _log.warning(f"waiting: {reason}")
        self.reasons = reasons
