"""Reload and restart requests: a preflight check passes before the first worker is replaced."""

import selectors
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from kworker.config.model import Config
from kworker.errors import ConfigError, ExitCode
from kworker.instance.host_lock import HostLock
from kworker.supervisor.announcer import Announcer
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.control.server import Connection, Reply
from kworker.supervisor.control.subscribers import ProgressSubscribers
from kworker.supervisor.limits import Limits
from kworker.supervisor.preflight_child import Check, Preflight, PreflightReport
from kworker.supervisor.rolling_restart import RollingRestart

_LOG = structlog.get_logger()
_FIXED_KEYS: dict[str, Callable[[Config], object]] = {
    "name": lambda config: config.name,
    "instance": lambda config: config.instance,
    "state_dir": lambda config: str(config.state_dir),
    "delivery.guarantee": lambda config: config.delivery.guarantee,
    "workers.membership": lambda config: config.workers.membership,
    "kafka.group.protocol": lambda config: _group_protocol(config),
}


def fixed_key_problems(old: Config, new: Config) -> list[str]:
    """Returns a line for each changed key that must not change while the service runs."""
    changed = [(key, of(old), of(new)) for key, of in _FIXED_KEYS.items() if of(old) != of(new)]
    return [
        f'{key}: is "{was}" and cannot become "{wanted}" while running: stop, then start'
        for key, was, wanted in changed
    ]


@dataclass(frozen=True, slots=True)
class _Pending:
    command: str
    config: Config
    check: Check
    peer: Connection | None
    waiting: ProgressSubscribers  # the peer, while the check runs


class Reload:
    """Carries out reload and restart requests: a preflight check, then a rolling restart.

    Owned by the supervisor. Calls `apply` with a configuration that has passed the check, before
    the first worker is replaced.
    """

    def __init__(
        self,
        fleet: Fleet,
        preflight: Preflight,
        apply: Callable[[Config, float], None],
        announcer: Announcer,
        selector: selectors.BaseSelector,
        limits: Limits,
        host_lock: HostLock,
    ) -> None:
        self.rolling_restart = RollingRestart(fleet)
        self._fleet = fleet
        self._preflight = preflight
        self._apply = apply
        self._announcer = announcer
        self._selector = selector
        self._limits = limits
        self._host_lock = host_lock
        self._pending: _Pending | None = None
        self._subscribers = ProgressSubscribers(limits.progress_every_s)

    def reload(
        self,
        old: Config,
        read_config: Callable[[], Config],
        now: float,
        peer: Connection | None = None,
    ) -> None:
        """Reads the configuration again, and begins the preflight check with it.

        Refuses a configuration with mistakes, or with changes of keys that must not change while
        the service runs. Also refuses if `read_config` fails for any other reason.
        """
        self._announcer.reloading()
        try:
            new = read_config()
            problems, code = fixed_key_problems(old, new), ExitCode.CONFIG
        except ConfigError as error:
            problems, code = error.problems, ExitCode.CONFIG
        except Exception as error:  # noqa: BLE001 - no mistake of ours may end a service that runs
            _LOG.exception("the configuration cannot be read; the service goes on with what it has")
            problems, code = [f"{type(error).__name__}: {error}"], ExitCode.FAILURE
        if problems:
            self._refuse("reload", problems, code, peer)
        else:
            self._check("reload", new, now, peer)

    def restart(self, config: Config, now: float, peer: Connection | None = None) -> None:
        """Begins the preflight check, after which new workers run the code that is now on disk."""
        self._check("restart", config, now, peer)

    def turn(self, now: float, progress: Callable[[], Reply]) -> None:
        """Replaces workers one by one if the check has passed; refuses the request if it failed.

        Sends progress to the waiting commands, also during a check, which can take minutes: a
        command takes a silent supervisor for one that hangs.
        """
        report = self._pending.check.turn(now) if self._pending else None
        if report is not None and self._pending is not None:
            pending, self._pending = self._pending, None
            self._act_on(pending, report, now)
        elif self._pending:
            self._pending.waiting.turn(now, lambda: {**progress(), "checking": True})
        self.rolling_restart.turn(now)
        self._subscribers.turn(now, lambda: {**progress(), "left": self.rolling_restart.left})
        if self.rolling_restart.left == 0:
            self._subscribers.finish({"done": True, "exit_code": 0})

    def on_exit(self, pid: int, code: int) -> None:
        """Passes a child's exit on to the preflight check, in case that child runs the check."""
        if self._pending:
            self._pending.check.on_exit(pid, code)

    def abandon(self, problem: str) -> None:
        """Cancels the check and the rolling restart; sends `problem` to the waiting commands."""
        self._drop_pending(problem)
        self.rolling_restart.clear()
        self._subscribers.finish({"error": problem, "exit_code": int(ExitCode.FAILURE)})

    def _check(self, command: str, config: Config, now: float, peer: Connection | None) -> None:
        self._drop_pending("a newer reload or restart took its place")
        check = Check(self._preflight, config, self._selector, now, self._limits.check_s)
        waiting = ProgressSubscribers(self._limits.progress_every_s)
        if peer:
            waiting.add(peer)
        self._pending = _Pending(command, config, check, peer, waiting)

    def _act_on(self, pending: _Pending, report: PreflightReport, now: float) -> None:
        for warning in report.warnings:
            _LOG.warning(f"preflight check: {warning}; the {pending.command} continues")
        if not report.passed:
            self._refuse(pending.command, *_problems(report), pending.peer)
            return
        if not self._host_lock.take(report.cluster):
            line = "another copy of this instance has just started on the configured cluster"
            self._refuse(pending.command, [line], ExitCode.ALREADY_RUNNING, pending.peer)
            return
        _LOG.info(f"{pending.command}: replacing {self._fleet.size} workers one at a time")
        self._apply(pending.config, now)
        self._announcer.reloaded()
        self.rolling_restart.add(dict.fromkeys(range(self._fleet.size), pending.command))
        if pending.peer:
            self._subscribers.add(pending.peer)

    def _refuse(
        self, command: str, lines: list[str], code: ExitCode, peer: Connection | None
    ) -> None:
        for problem in lines:
            _LOG.error(f"{command} refused, nothing is changed: {problem}")
        self._announcer.reloaded()
        if peer:
            peer.refuse("\n".join(lines), code)

    def _drop_pending(self, problem: str) -> None:
        if self._pending:
            self._pending.check.cancel()
            if self._pending.peer:
                self._pending.peer.refuse(f"{self._pending.command}: {problem}", ExitCode.FAILURE)
        self._pending = None


def _problems(report: PreflightReport) -> tuple[list[str], ExitCode]:
    lines = [*report.problems, *report.taken, *report.unreachable]
    if report.problems:
        return lines, ExitCode.CONFIG
    return lines, ExitCode.ALREADY_RUNNING if report.taken else ExitCode.UNREACHABLE


def _group_protocol(config: Config) -> object:
    return {**config.kafka.common, **config.kafka.consumer}.get("group.protocol", "classic")
