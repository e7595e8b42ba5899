"""The life of a service: from waiting over serving to draining, and what is asked of it."""

import faulthandler
import os
import selectors
import signal
from enum import Enum, auto
from typing import Any

import structlog

from kworker import log
from kworker.config.model import Config
from kworker.distribution import package_version
from kworker.errors import AlreadyRunning, ConfigError, ExitCode, KworkerError
from kworker.instance.host_lock import HostLock
from kworker.instance.state_folder import StateFolder
from kworker.supervisor import status
from kworker.supervisor.announcer import Announcer
from kworker.supervisor.children.delay_process import DelayChild
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.children.spark_job import SparkJob
from kworker.supervisor.children.worker_process import WorkerProcess
from kworker.supervisor.control.server import Connection
from kworker.supervisor.control.subscribers import ProgressSubscribers
from kworker.supervisor.group_lag import GroupLag
from kworker.supervisor.health import WorkerHealth
from kworker.supervisor.reload import Reload
from kworker.supervisor.startup import Startup
from kworker.supervisor.wiring import Wiring

_log = structlog.get_logger()


class Mode(Enum):
    """Where the service is; it only ever moves forward."""

    STARTING = auto()  # waits for leftovers and for the preflight check
    SERVING = auto()
    DRAINING = auto()  # the workers
    CLOSING = auto()  # they are gone, Spark or the delay process is not
    GONE = auto()


class Service:
    """Acts on signals, requests, deaths and time. Owned by the supervisor's one thread."""

    def __init__(
        self,
        config: Config,
        wiring: Wiring,
        folder: StateFolder,
        selector: selectors.BaseSelector,
        announcer: Announcer,
        now: float,
    ) -> None:
        limits = wiring.limits
        self.config = config
        self.mode = Mode.STARTING
        self.startup_error: KworkerError | None = None  # for which it does not start
        self._host_lock = HostLock(config, selector)
        self.fleet = Fleet(config, folder, wiring.worker_main, limits, self._host_lock)
        self._wiring = wiring
        self._announcer = announcer
        self._started = now
        self._joined = False
        self._interrupts = 0
        self._to_dump: list[WorkerProcess] = []
        self._dump_at = 0.0
        self._exit_code = ExitCode.OK
        self._health = WorkerHealth(self.fleet, limits)
        self._delay = DelayChild(
            config, wiring.delay_main, folder, limits, self.fleet.lifeline, self._host_lock
        )
        self._lag = GroupLag(self.fleet, limits)
        self._spark = SparkJob(config, wiring.spark_command, folder, limits)
        self._startup = Startup(config, folder, wiring.preflight, limits, selector, now)
        self._reload = Reload(
            self.fleet,
            wiring.preflight,
            self._apply,
            announcer,
            selector,
            limits,
            self._host_lock,
        )
        self._subscribers = ProgressSubscribers(limits.progress_every_s)  # of the drain

    # What time and children bring.

    def turn(self, now: float) -> None:
        """Does what is due, and tells whoever listens."""
        match self.mode:
            case Mode.STARTING:
                self._open(now)
            case Mode.SERVING:
                self._serve(now)
            case Mode.DRAINING:
                self._drain_on(now)
            case Mode.CLOSING:
                self._close_on(now)
            case Mode.GONE:
                pass
        self._dump_next(now)
        self._announce(now)

    def on_exit(self, pid: int, code: int, now: float) -> None:
        """A child was reaped; it belongs to one of us, or is a stranger's orphan."""
        exit_code = self.fleet.on_exit(pid, code, now) or self._delay.on_exit(pid, code, now)
        self._startup.on_exit(pid, code)
        self._reload.on_exit(pid, code)
        self._spark.on_exit(pid, code, now)
        if exit_code is not None:
            self.drain(now, exit_code)

    def reset_timers(self, now: float) -> None:
        """We were stopped or starved: nobody is judged by the time before."""
        self._health.reset_timers(now)
        self._delay.reset_timers(now)

    @property
    def exit_code(self) -> ExitCode:
        """How it ends, as far as is known."""
        if self._exit_code is ExitCode.OK and self.fleet.unfinished:
            return ExitCode.DRAIN_TIMED_OUT
        return self._exit_code

    # What people and systemd ask for.

    def drain(self, now: float, exit_code: ExitCode = ExitCode.OK) -> None:
        """All finish what is in hand and end; a second call changes nothing."""
        if self.mode not in (Mode.STARTING, Mode.SERVING):
            return
        _log.info("draining", exit_code=int(exit_code), in_hand=self.fleet.in_hand())
        self.mode = Mode.DRAINING
        self._exit_code = exit_code
        self._announcer.stopping()
        self._startup.cancel()
        self._reload.abandon("the service is draining")
        # Who stops leaves the partitions to others; who failed will be started again.
        self.fleet.drain(now, leave=exit_code is ExitCode.OK)
        self._delay.drain(now, leave=exit_code is ExitCode.OK)

    def interrupt(self, now: float) -> None:
        """Ctrl-C: drains, and when asked again ends at once."""
        self._interrupts += 1
        if self._interrupts > 1:
            self.quit(now)
        else:
            self.drain(now)

    def quit(self, now: float) -> None:
        """Everything ends at once."""
        self.drain(now)
        _log.warning("ending at once: what is in hand is delivered again")
        self.fleet.quit(now)
        self._delay.quit(now)
        self._spark.quit()

    def reload(self, now: float, peer: Connection | None = None) -> None:
        """Reads the configuration again and replaces the workers one by one."""
        if self._can_renew("reload", peer):
            self._reload.reload(self.config, self._wiring.read_config, now, peer)

    def restart(self, now: float, peer: Connection | None = None) -> None:
        """Replaces the workers one by one."""
        if self._can_renew("restart", peer):
            self._reload.restart(self.config, now, peer)

    def scale(self, size: int, now: float) -> int:
        """Brings the workers to `size`, from 1 to the board's room; the size that it is now."""
        if not 1 <= size <= self.fleet.room:
            _log.warning(f"no fewer than 1 and no more than {self.fleet.room} workers: not scaled")
        elif self.mode is Mode.SERVING:
            _log.info("scaling", workers=size, before=self.fleet.size)
            self.fleet.resize(size, now)
        return self.fleet.size

    def dump(self) -> list[int]:
        """Every process writes its stacks to standard error; the pids of the children.

        One after the other: two at once would tear each other's lines.
        """
        faulthandler.dump_traceback(all_threads=True)
        self._to_dump = [*self.fleet.living, *self._delay.living]
        return [worker.pid for worker in self._to_dump if worker.pid]

    def _dump_next(self, now: float) -> None:
        if self._to_dump and now >= self._dump_at:
            self._dump_at = now + self._wiring.limits.dump_gap_s
            self._to_dump.pop(0).signal(signal.SIGUSR1)

    def subscribe(self, connection: Connection) -> None:
        """This peer sees the drain through to its end."""
        self._subscribers.add(connection)

    def finish(self) -> None:
        """Tells those who saw the drain through how it ended."""
        end: dict[str, Any] = {"done": True, "exit_code": int(self.exit_code)}
        if self.fleet.left:
            end["left"] = self.fleet.left
        self._subscribers.finish(end)

    def status(self, now: float) -> dict[str, Any]:
        """The document of `status --json`."""
        problems = self._problems(now)
        return {
            "name": self.config.name,
            "instance": self.config.instance,
            "version": package_version(),
            "state": self._state(problems),
            "reasons": problems,
            "pid": os.getpid(),
            "uptime_s": round(now - self._started, 1),
            **status.fleet_status(self.fleet, now),
            "lag": self._lag.status(self._delay.live_text()),
            "delays": self._delay.delay_rows(),
            "delay": self._delay.status(now),
            "spark": self._spark.status(),
        }

    # One step in each mode.

    def _open(self, now: float) -> None:
        report = self._startup.turn(now)
        if report is None:
            return
        for warning in report.warnings:
            _log.warning(f"{warning}; starting all the same")
        if report.problems:
            self._refuse(ConfigError(report.problems), now)
        elif report.taken:
            self._refuse(AlreadyRunning("\n".join(report.taken)), now)
        elif not self._host_lock.take(report.cluster):
            self._startup.restart_check(self.config, now)  # it came since, and will be named
        else:
            self._startup.problems = []
            self.mode = Mode.SERVING
            self.fleet.resize(self.fleet.size, now)
            self._delay.begin(now)
            self._spark.begin(now)

    def _refuse(self, why: KworkerError, now: float) -> None:
        self.startup_error = why
        self.drain(now, why.exit_code)

    def _serve(self, now: float) -> None:
        self._health.turn(self.config, now)
        if not self._reload.rolling_restart.left:
            self._reload.rolling_restart.add(self._health.worn_out(self.config, now))
        self._reload.turn(now, lambda: self._progress(now))
        self.fleet.turn(now)
        self._delay.turn(now)
        self._lag.turn(self._delay.live_text, now)
        self._spark.turn(now)
        if not self._joined and self.fleet.joined:
            self._joined = True
            _log.info("every worker has joined: running", workers=self.fleet.size)

    def _drain_on(self, now: float) -> None:
        self._health.turn(self.config, now)
        self.fleet.turn(now)
        self._delay.turn(now)
        self._announcer.draining(self.fleet.in_hand() + len(self.fleet.workers), now)
        if not self.fleet.workers:
            self.mode = Mode.CLOSING
            self._spark.stop(now)
            self._close_on(now)

    def _close_on(self, now: float) -> None:
        self._delay.turn(now)
        self._spark.turn(now)
        self.fleet.leftovers.turn(now)
        if not (self._spark.alive or self._delay.alive or self.fleet.leftovers.any):
            self.mode = Mode.GONE

    def _announce(self, now: float) -> None:
        serving = self.mode is Mode.SERVING
        joined = serving and self.fleet.joined
        self._announcer.turn(now, joined=joined, responsive=self._health.is_responsive(now))
        if self._announcer.status_due(now):
            problems = self._problems(now)
            line = status.summary_line(self.fleet, self._state(problems), problems)
            self._announcer.status(line, now)
        if not serving:
            self._subscribers.turn(now, lambda: self._progress(now))

    def _apply(self, config: Config, now: float) -> None:
        before, self.config = self.config, config
        log.configure(config.log)
        self.fleet.apply(config)
        if config.workers.processes != before.workers.processes:
            self.fleet.resize(config.workers.processes, now)
        self._delay.apply(config, now)
        self._spark.apply(config, now)

    def _can_renew(self, what: str, peer: Connection | None) -> bool:
        if self.mode is Mode.SERVING:
            return True
        state = self._state(self._startup.problems)
        _log.warning(f"{what} ignored while {state}: nothing is changed")
        if peer:
            peer.refuse(f"{what}: not while {state}: nothing is changed", ExitCode.FAILURE)
        return False

    def _progress(self, now: float) -> dict[str, Any]:
        return status.progress(self.fleet, self._state(self._problems(now)))

    def _state(self, problems: list[str]) -> str:
        match self.mode:
            case Mode.STARTING:
                return "waiting" if problems else "starting"
            case Mode.SERVING if problems:
                return "red"
            case Mode.SERVING:
                return "running" if self._joined else "starting"
        return "draining"

    def _problems(self, now: float) -> list[str]:
        return [
            *self._startup.problems,
            *status.fleet_problems(self.fleet, now),
            *(self._lag.problems(self._delay.live_text(), now) if self._joined else []),
            *self._delay.problems(now),
            *self._spark.problems,
        ]
