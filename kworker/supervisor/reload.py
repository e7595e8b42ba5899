"""Reload and rolling restart: judged whole before the first worker is touched."""

import selectors
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from kworker.config.model import Config
from kworker.errors import ConfigError, ExitCode
from kworker.instance.host_lock import HostLock
from kworker.supervisor.announcer import Announcer
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.control.followers import ProgressSubscribers
from kworker.supervisor.control.server import Connection, Reply
from kworker.supervisor.limits import Limits
from kworker.supervisor.preflight_child import Check, Preflight, PreflightReport
from kworker.supervisor.rolling_restart import RollingRestart

_log = structlog.get_logger()
_FIXED: dict[str, Callable[[Config], object]] = {
    "name": lambda config: config.name,
    "instance": lambda config: config.instance,
    "state_dir": lambda config: str(config.state_dir),
    "delivery.guarantee": lambda config: config.delivery.guarantee,
    "workers.membership": lambda config: config.workers.membership,
    "kafka.group.protocol": lambda config: _group_protocol(config),
    "console.listen": lambda config: config.console.listen,
}


def refusals(old: Config, new: Config) -> list[str]:
    """A line for each key that differs and cannot change while the service runs."""
    changed = [(key, of(old), of(new)) for key, of in _FIXED.items() if of(old) != of(new)]
    return [
        f'{key}: is "{was}" and cannot become "{wanted}" while running: stop, then start'
        for key, was, wanted in changed
    ]


@dataclass(frozen=True, slots=True)
class _Pending:
    what: str
    config: Config
    check: Check
    asked_by: Connection | None


class Reload:
    """The renewal that waits for its check, the roll under way, and who looks on.

    Owned by the supervisor. `adopt` is called with a configuration that has
    passed, before the first worker is replaced.
    """

    def __init__(
        self,
        fleet: Fleet,
        preflight: Preflight,
        adopt: Callable[[Config, float], None],
        announcer: Announcer,
        selector: selectors.BaseSelector,
        limits: Limits,
        host_lock: HostLock,
    ) -> None:
        self.roll = RollingRestart(fleet)
        self._fleet = fleet
        self._preflight = preflight
        self._adopt = adopt
        self._announcer = announcer
        self._selector = selector
        self._limits = limits
        self._host_lock = host_lock
        self._pending: _Pending | None = None
        self._followers = ProgressSubscribers(limits.progress_every_s)

    def reload(
        self,
        old: Config,
        reread: Callable[[], Config],
        now: float,
        asked_by: Connection | None = None,
    ) -> None:
        """Reads the configuration again; a mistake or a key that is fixed changes nothing."""
        self._announcer.reloading()
        try:
            new = reread()
            problems = refusals(old, new)
        except ConfigError as error:
            problems = error.problems
        if problems:
            self._refuse("reload", problems, ExitCode.CONFIG, asked_by)
        else:
            self._check("reload", new, now, asked_by)

    def restart(self, config: Config, now: float, asked_by: Connection | None = None) -> None:
        """The same configuration, but the code as it is on disk now."""
        self._check("restart", config, now, asked_by)

    def turn(self, now: float, progress: Callable[[], Reply]) -> None:
        report = self._pending.check.turn(now) if self._pending else None
        if report is not None and self._pending is not None:
            pending, self._pending = self._pending, None
            self._judge(pending, report, now)
        self.roll.turn(now)
        self._followers.turn(now, lambda: {**progress(), "left": self.roll.left})
        if self.roll.left == 0:
            self._followers.finish({"done": True, "exit_code": 0})

    def died(self, pid: int, code: int) -> None:
        """A child was reaped, ours or another's."""
        if self._pending:
            self._pending.check.died(pid, code)

    def abandon(self, why: str) -> None:
        """Nothing more is replaced; whoever waits for it hears why."""
        self._drop_pending(why)
        self.roll.clear()
        self._followers.finish({"error": why, "exit_code": int(ExitCode.FAILURE)})

    def _check(self, what: str, config: Config, now: float, asked_by: Connection | None) -> None:
        self._drop_pending("another one took its place")
        check = Check(self._preflight, config, self._selector, now, self._limits.check_s)
        self._pending = _Pending(what, config, check, asked_by)

    def _judge(self, pending: _Pending, report: PreflightReport, now: float) -> None:
        for warning in report.warnings:
            _log.warning(f"{warning}; the {pending.what} goes on")
        if not report.fine:
            self._refuse(pending.what, *_why_not(report), pending.asked_by)
            return
        if not self._host_lock.take(report.cluster):
            line = "another copy of this instance has just started on the cluster that it names"
            self._refuse(pending.what, [line], ExitCode.ALREADY_RUNNING, pending.asked_by)
            return
        _log.info(f"{pending.what}: replacing {self._fleet.size} workers one at a time")
        self._adopt(pending.config, now)
        self._announcer.reloaded()
        self.roll.add(range(self._fleet.size))
        if pending.asked_by:
            self._followers.add(pending.asked_by)

    def _refuse(
        self, what: str, lines: list[str], code: ExitCode, asked_by: Connection | None
    ) -> None:
        for line in lines:
            _log.error(f"{what} refused, nothing is changed: {line}")
        self._announcer.reloaded()
        if asked_by:
            asked_by.refuse("\n".join(lines), code)

    def _drop_pending(self, why: str) -> None:
        if self._pending:
            self._pending.check.cancel()
            if self._pending.asked_by:
                self._pending.asked_by.refuse(f"{self._pending.what}: {why}", ExitCode.FAILURE)
        self._pending = None


def _why_not(report: PreflightReport) -> tuple[list[str], ExitCode]:
    lines = [*report.problems, *report.taken, *report.unreachable]
    if report.problems:
        return lines, ExitCode.CONFIG
    return lines, ExitCode.ALREADY_RUNNING if report.taken else ExitCode.UNREACHABLE


def _group_protocol(config: Config) -> object:
    return {**config.kafka.common, **config.kafka.consumer}.get("group.protocol", "classic")
