"""The life of a service, from its startup to the end of its drain, and the requests to it."""

import selectors
from typing import Any

import structlog

from kworker import log
from kworker.config.model import Config
from kworker.errors import AlreadyRunning, ConfigError, ExitCode, KworkerError
from kworker.instance.host_lock import HostLock
from kworker.instance.pause_file import PauseFile, WatchedPauses
from kworker.instance.state_folder import StateFolder
from kworker.supervisor import status
from kworker.supervisor.announcer import Announcer
from kworker.supervisor.children.console_child import ConsoleChild
from kworker.supervisor.children.delay_process import DelayChild
from kworker.supervisor.children.fleet import Fleet
from kworker.supervisor.children.spark_job import SparkJob
from kworker.supervisor.control.server import Connection
from kworker.supervisor.control.subscribers import ProgressSubscribers
from kworker.supervisor.group_lag import GroupLag
from kworker.supervisor.health import WorkerHealth
from kworker.supervisor.mode import Mode
from kworker.supervisor.operator_pauses import OperatorPauses
from kworker.supervisor.reload import Reload
from kworker.supervisor.stack_dumps import StackDumps
from kworker.supervisor.startup import Startup
from kworker.supervisor.wiring import Wiring

_LOG = structlog.get_logger()


class Service:
    """Controls all children of a service. Owned by the supervisor's only thread."""

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
        self.startup_error: KworkerError | None = None  # ended the startup, if anything did
        self._host_lock = HostLock(config, selector)
        self.fleet = Fleet(config, folder, wiring.worker_main, limits, self._host_lock)
        self._wiring = wiring
        self._announcer = announcer
        self._started = now
        self._joined = False
        self._interrupts = 0
        self._stack_dumps = StackDumps(limits.dump_gap_s)
        self._exit_code = ExitCode.OK
        self._health = WorkerHealth(self.fleet, limits)
        self._delay = DelayChild(
            config, wiring.delay_main, folder, limits, self.fleet.lifeline, self._host_lock
        )
        self._lag = GroupLag(self.fleet, limits)
        self._spark = SparkJob(config, wiring.spark_command, folder, limits)
        self._console = ConsoleChild(config, wiring.console_command, folder, limits, now)
        self._startup = Startup(config, folder, wiring.preflight, limits, selector, now)
        self._reload = Reload(
            self.fleet, wiring.preflight, self._apply, announcer, selector, limits, self._host_lock
        )
        self._pauses = OperatorPauses(WatchedPauses(PauseFile(folder.pauses)))
        self._subscribers = ProgressSubscribers(limits.progress_every_s)  # of the drain

    # Called by the supervisor's loop.

    def turn(self, now: float) -> None:
        """Does what is due in the startup, the service or the drain, and reports the progress."""
        self._pauses.turn(now)
        match self.mode:
            case Mode.STARTING:
                self._turn_starting(now)
            case Mode.SERVING:
                self._turn_serving(now)
            case Mode.DRAINING:
                self._turn_draining(now)
            case Mode.CLOSING:
                self._turn_closing(now)
            case Mode.GONE:
                pass
        self._stack_dumps.turn(now)
        self._console.turn(now)
        self._announce(now)

    def on_exit(self, pid: int, code: int, now: float) -> None:
        """Tells each child object which process was reaped; drains if the service must end."""
        exit_code = self.fleet.on_exit(pid, code, now) or self._delay.on_exit(pid, code, now)
        self._startup.on_exit(pid, code)
        self._reload.on_exit(pid, code)
        self._spark.on_exit(pid, code, now)
        self._console.on_exit(pid, code, now)
        if exit_code is not None:
            self.drain(now, exit_code)

    def reset_timers(self, now: float) -> None:
        """Restarts the timers that find stuck children, because the supervisor was suspended."""
        self._health.reset_timers(now)
        self._delay.reset_timers(now)

    @property
    def exit_code(self) -> ExitCode:
        """The code with which the service will exit, as far as it is known now."""
        if self._exit_code is ExitCode.OK and self.fleet.unfinished:
            return ExitCode.DRAIN_TIMED_OUT
        return self._exit_code

    # Requests, by signals and over the control socket.

    def drain(self, now: float, exit_code: ExitCode = ExitCode.OK) -> None:
        """Lets every child finish its records and end; a second call changes nothing."""
        if self.mode not in (Mode.STARTING, Mode.SERVING):
            return
        in_hand = self.fleet.in_hand()
        _LOG.info(
            "draining: finishing records, then ending", exit_code=int(exit_code), in_hand=in_hand
        )
        self.mode = Mode.DRAINING
        self._exit_code = exit_code
        self._announcer.stopping()
        self._startup.cancel()
        self._reload.abandon("the service is draining")
        # After a stop other instances take the partitions; after a failure systemd starts us again.
        self.fleet.drain(now, leave=exit_code is ExitCode.OK)
        self._delay.drain(now, leave=exit_code is ExitCode.OK)

    def interrupt(self, now: float) -> None:
        """Drains at the first Ctrl-C, and ends every child at once at the second."""
        self._interrupts += 1
        if self._interrupts > 1:
            self.quit(now)
        else:
            self.drain(now)

    def quit(self, now: float) -> None:
        """Ends every child at once; unfinished records will be redelivered."""
        self.drain(now)
        _LOG.warning("ending all processes at once: unfinished records will be redelivered")
        self.fleet.quit(now)
        self._delay.quit(now)
        self._spark.quit()

    def reload(self, now: float, peer: Connection | None = None) -> None:
        """Reads the configuration again, checks it, and replaces the workers one by one."""
        if self.mode is Mode.SERVING:
            self._reload.reload(self.config, self._wiring.read_config, now, peer)
        else:
            self._ignore("reload", peer)

    def restart(self, now: float, peer: Connection | None = None) -> None:
        """Checks the configuration in force, and replaces the workers one by one."""
        if self.mode is Mode.SERVING:
            self._reload.restart(self.config, now, peer)
        else:
            self._ignore("restart", peer)

    def scale(self, size: int, now: float) -> int:
        """Sets the number of workers, unless it is out of range; returns the number in force."""
        if self.mode is Mode.SERVING:
            self.fleet.scale(size, now)
        return self.fleet.size

    def dump(self) -> list[int]:
        """Has every process write its stacks to standard error; returns the children's pids."""
        return self._stack_dumps.begin([*self.fleet.living, *self._delay.living])

    def subscribe(self, connection: Connection) -> None:
        """Sends the progress of the drain to this connection, until the drain ends."""
        self._subscribers.add(connection)

    def finish(self) -> None:
        """Sends the result of the drain to the connections that wait for it."""
        self._subscribers.finish(status.drain_end(self.fleet, self.exit_code))

    def status(self, now: float) -> dict[str, Any]:
        """Returns the document of `status --json`."""
        self._pauses.turn(now, force=True)  # one may have been ordered just before
        problems = self._problems(now)
        return {
            **status.service_identity(self.config, now - self._started),
            "state": self._state(problems),
            "joined": self._joined,
            "reasons": problems,
            "paused": self._pauses.rows(),
            **status.fleet_status(self.fleet, now),
            "lag": self._lag.status(self._delay.live_text()),
            "delays": self._delay.delay_rows(),
            "delay": self._delay.status(now),
            "spark": self._spark.status(),
            "console": self._console.status(),
        }

    # One turn in each mode.

    def _turn_starting(self, now: float) -> None:
        report = self._startup.turn(now)
        if report is None:
            return
        for warning in report.warnings:
            _LOG.warning(f"preflight check: {warning}; starting anyway")
        if report.problems:
            self._abort_startup(ConfigError(report.problems), now)
        elif report.taken:
            self._abort_startup(AlreadyRunning("\n".join(report.taken)), now)
        elif not self._host_lock.take(report.cluster):
            # Another copy took it since the check; the next check names that copy.
            self._startup.restart_check(self.config, now)
        else:
            self._startup.problems = []
            self.mode = Mode.SERVING
            self.fleet.resize(self.fleet.size, now)
            self._delay.begin(now)
            self._spark.begin(now)

    def _abort_startup(self, error: KworkerError, now: float) -> None:
        self.startup_error = error
        self.drain(now, error.exit_code)

    def _turn_serving(self, now: float) -> None:
        self._health.turn(self.config, now)
        if not self._reload.rolling_restart.left:
            self._reload.rolling_restart.add(self._health.find_worn_out(self.config, now))
        self._reload.turn(now, lambda: self._progress(now))
        self.fleet.turn(now)
        self._delay.turn(now)
        self._lag.turn(self._delay.live_text, now)
        self._spark.turn(now)
        if not self._joined and self.fleet.joined:
            self._joined = True
            _LOG.info("every worker has joined its group: running", workers=self.fleet.size)

    def _turn_draining(self, now: float) -> None:
        self._health.turn(self.config, now)
        self.fleet.turn(now)
        self._delay.turn(now)
        self._announcer.draining(self.fleet.in_hand() + len(self.fleet.workers), now)
        if not self.fleet.workers:
            self.mode = Mode.CLOSING
            self._spark.stop(now)
            self._turn_closing(now)

    def _turn_closing(self, now: float) -> None:
        self._delay.turn(now)
        self._spark.turn(now)
        self.fleet.leftovers.turn(now)
        if self._spark.alive or self._delay.alive or self.fleet.leftovers.any:
            return
        if self._console.stop(now):  # last, for it shows the drain
            self.mode = Mode.GONE

    def _announce(self, now: float) -> None:
        serving = self.mode is Mode.SERVING
        joined = serving and self.fleet.joined
        self._announcer.turn(now, joined=joined, responsive=self._health.is_responsive(now))
        if self._announcer.status_due(now):
            problems = self._problems(now)
            state, paused = self._state(problems), self._pauses.rows()
            self._announcer.status(status.summary_line(self.fleet, state, problems, paused), now)
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
        self._console.apply(config, now)

    def _ignore(self, command: str, peer: Connection | None) -> None:
        state = self._state(self._startup.problems)
        line = f"{command} ignored while {state}: nothing is changed"
        _LOG.warning(line)
        if peer:
            peer.refuse(line, ExitCode.FAILURE)

    def _progress(self, now: float) -> dict[str, Any]:
        return status.progress(self.fleet, self._state(self._problems(now)))

    def _state(self, problems: list[str]) -> str:
        paused = self._pauses.is_complete(self.config)
        return self.mode.state(problems, joined=self._joined, paused=paused)

    def _problems(self, now: float) -> list[str]:
        return [
            *self._startup.problems,
            *status.fleet_problems(self.fleet, now),
            *(self._lag.problems(self._delay.live_text(), now) if self._joined else []),
            *self._delay.problems(now),
            *self._spark.problems,
        ]
