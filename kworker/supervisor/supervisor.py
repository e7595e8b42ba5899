"""The supervisor's loop: one process with one thread, woken by signals, control peers and time."""

import os
import selectors
import signal
import time
from collections.abc import Callable

import structlog
from setproctitle import setproctitle

from kworker.config.model import Config
from kworker.instance.child import reap
from kworker.instance.state_folder import StateFolder
from kworker.log.daemon_file import RotatedFile
from kworker.supervisor.announcer import Announcer
from kworker.supervisor.control.commands import verbs
from kworker.supervisor.control.server import ControlServer
from kworker.supervisor.mode import Mode
from kworker.supervisor.notify import Notifier
from kworker.supervisor.service import Service
from kworker.supervisor.signals import Signals
from kworker.supervisor.wiring import Wiring

_LOG = structlog.get_logger()
_CLOSING_TURN_S = 0.05  # short, so that the supervisor ends soon after its last child


class Supervisor:
    """Locks the state folder, then tells the service of every event.

    Events are signals, requests of commands, and exits of child processes.

    Must be made in the process that will be the supervisor, since it installs signal handlers
    and takes the lock. Raises AlreadyRunning if another process has the lock, ConfigError if
    the state folder cannot be used. Writes to `ready_fd` when all workers have joined.
    """

    def __init__(self, config: Config, wiring: Wiring, ready_fd: int | None = None) -> None:
        folder = StateFolder(config.state_dir)
        folder.make()
        self._lock = folder.lock()  # until this process ends
        now = time.monotonic()
        self._gap_s = wiring.limits.gap_s
        self._turn_s = wiring.limits.turn_s
        self._last_turn_at = now
        self._signals = Signals()
        self._signals.install()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals, selectors.EVENT_READ, _nothing)
        announcer = Announcer(Notifier(os.environ), ready_fd, wiring.limits, now)
        self._service = Service(config, wiring, folder, self._selector, announcer, now)
        self._control = ControlServer(folder.socket, self._selector, verbs(self._service), now)
        self._signal_actions = _signal_actions(self._service)
        self._changed_files = wiring.changed_files
        self._log_file = RotatedFile()
        setproctitle(f"kworker: supervisor [{config.name}]")
        _LOG.info("supervisor started", service=config.name, instance=config.instance)

    def run(self) -> int:
        """Runs until every child has ended; returns the exit code.

        Raises ConfigError or AlreadyRunning when the preflight check ended the startup.
        """
        while self._service.mode is not Mode.GONE:
            self.turn()
        self._signals.ignore()
        code = self._service.exit_code
        self._service.finish()
        self._control.close()
        records_left = self._service.fleet.records_left
        _LOG.info("supervisor ends", exit_code=int(code), records_left=records_left)
        if self._service.startup_error:
            raise self._service.startup_error
        return code

    def turn(self) -> None:
        """Waits for an event or the end of an interval, and then runs one turn of the service.

        Before that turn, acts on signals, reaps children, answers requests, and begins a reload if
        watched files have changed.
        """
        ready = self._wait()
        now = time.monotonic()
        if now - self._last_turn_at > self._gap_s:
            self._service.reset_timers(now)
        self._last_turn_at = now
        for signum in self._signals.take():
            self._signal_actions[signum](now)
        for pid, code in reap():
            self._service.on_exit(pid, code, now)
        # Peers after deaths, so that no answer shows a process that has been reaped as alive.
        for key in ready:
            if self._selector.get_map().get(key.fd) is key:  # reaping may have closed it
                key.data()
        self._reload_if_changed(now)
        self._service.turn(now)
        self._control.turn(now)
        self._log_file.turn(now, self._service.config.log)

    def _reload_if_changed(self, now: float) -> None:
        if self._service.mode is Mode.SERVING and (changed := self._changed_files(now)):
            _LOG.info("files have changed: reloading", files=changed)
            self._service.reload(now)

    def _wait(self) -> list[selectors.SelectorKey]:
        closing = self._service.mode in (Mode.DRAINING, Mode.CLOSING)
        timeout_s = _CLOSING_TURN_S if closing else self._turn_s
        return [key for key, _ in self._selector.select(timeout_s)]


def _signal_actions(service: Service) -> dict[int, Callable[[float], object]]:
    return {
        signal.SIGTERM: service.drain,
        signal.SIGINT: service.interrupt,
        signal.SIGQUIT: service.quit,
        signal.SIGHUP: service.reload,
        signal.SIGUSR2: service.restart,
        signal.SIGUSR1: lambda _now: service.dump(),
        signal.SIGTTIN: lambda now: service.scale(service.fleet.size + 1, now),
        signal.SIGTTOU: lambda now: service.scale(service.fleet.size - 1, now),
        signal.SIGCHLD: _nothing,  # every turn reaps
    }


def _nothing(_now: float = 0.0) -> None:
    """Does nothing: the signal or descriptor has only to wake the loop."""
