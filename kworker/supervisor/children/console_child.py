"""The console as a child process, which serves the web page, the metrics and the probes.

The records are processed whether or not the console runs. The supervisor binds the console's port,
and the child inherits the listening socket. So clients wait while a console that has died is
started again, and no process is started if the port is taken.
"""

import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

import structlog

from kworker.config.model import Config
from kworker.core.address import Address
from kworker.core.restart import Backoff
from kworker.instance.child import exit_text, kill_group, spawn
from kworker.instance.state_folder import StateFolder
from kworker.log import daemon_file
from kworker.supervisor.limits import Limits

COMMAND = (sys.executable, "-P", "-m", "kworker.console")  # -P: not from the working folder
TOKEN_VARIABLE = "CONSOLE_TOKEN"
_LOG = structlog.get_logger()
_BACKLOG = 64
_END_S = 1.0
# All that the console has of the environment: it needs no secret of the service.
_INHERITED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"),
    daemon_file.VARIABLE,
)


class ConsoleChild:
    """Keeps the console, `python -m kworker.console`, running. Owned by the supervisor.

    If the console cannot run, or its port is taken, this is logged, and the start is tried again
    later. The service's state does not turn red, because the records do not depend on the console.
    """

    def __init__(
        self,
        config: Config,
        command: Sequence[str],
        folder: StateFolder,
        limits: Limits,
        now: float,
    ) -> None:
        self._config = config
        self._command = command
        self._folder = folder
        self._limits = limits
        self._listener: socket.socket | None = None
        self._pid: int | None = None
        self._started = 0.0
        self._backoff = self._new_backoff()
        self._problem = ""
        self._stopped_at: float | None = None
        self._start_at: float | None = now if config.console.listen else None

    @property
    def alive(self) -> bool:
        return self._pid is not None

    def apply(self, config: Config, now: float) -> None:
        """Restarts the console at a reload, if its settings or those of the log have changed."""
        before, self._config = self._config, config
        if (before.console, before.log) == (config.console, config.log):
            return
        if before.console.listen != config.console.listen:
            self._close()
        self._backoff = self._new_backoff()
        self._problem = ""
        self._start_at = now if config.console.listen else None
        self._kill()

    def turn(self, now: float) -> None:
        """Starts the console if its start is due."""
        if self._start_at is not None and now >= self._start_at and not self.alive:
            self._start(now)

    def stop(self, now: float) -> bool:
        """Ends the console for good, at once, since the console has nothing to finish.

        Must be called again until it returns True. Returns True once the console has ended, and
        after _END_S in any case: a process may hang in the kernel.
        """
        if self._stopped_at is None:
            self._stopped_at = now
            self._start_at = None
            self._close()
            self._kill()
        return not self.alive or now - self._stopped_at > _END_S

    def on_exit(self, pid: int, code: int, now: float) -> None:
        """Plans the next start if the reaped child is the console, and was not ended on purpose."""
        if pid != self._pid:
            return
        self._pid = None
        if self._stopped_at is not None or self._start_at is not None or self._listener is None:
            return  # it was ended, for good or for a start with other settings
        self._again(f"the console exited ({exit_text(code)})", now - self._started, now)

    def status(self) -> dict[str, Any]:
        """Returns the value of `console` in `status --json`."""
        listen = self._config.console.listen
        state = "running" if self.alive else "waiting" if listen else "off"
        return {"state": state, "listen": listen, "pid": self._pid, "reason": self._problem}

    def _start(self, now: float) -> None:
        self._start_at = None
        listen = self._config.console.listen
        try:
            self._listener = self._listener or _bind(listen)
            fd = self._listener.fileno()
            self._pid = spawn(self._argv(fd), self._environment(), keep=(fd,))
        except OSError as error:
            self._again(f"the console cannot listen on {listen} ({error.strerror})", 0.0, now)
            return
        self._started = now
        self._problem = ""
        _LOG.info(f"the console started: http://{listen}/", console_pid=self._pid)

    def _again(self, problem: str, lived_s: float, now: float) -> None:
        delay_s = self._backoff.failed(lived_s)
        self._start_at = now + delay_s
        if problem != self._problem:  # a port may be taken for days
            self._problem = problem
            _LOG.warning(
                f"{problem}; the service runs without the console; next try in {delay_s:g} s"
            )

    def _argv(self, fd: int) -> list[str]:
        config = self._config
        return [
            *self._command,
            f"--name={config.name}",  # which may begin with a hyphen
            f"--state-dir={self._folder.path}",
            f"--listen={config.console.listen}",
            f"--fd={fd}",
            f"--log-format={config.log.format}",
            f"--log-level={config.log.level}",
        ]

    def _environment(self) -> dict[str, str]:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return {**environment, TOKEN_VARIABLE: self._config.console.token}

    def _kill(self) -> None:
        if self._pid:
            kill_group(self._pid)

    def _close(self) -> None:
        if self._listener:
            self._listener.close()
        self._listener = None

    def _new_backoff(self) -> Backoff:
        policy = self._limits.restart
        return Backoff(policy.first_delay_s, policy.longest_delay_s, calm_s=60.0)


def _bind(listen: str) -> socket.socket:
    """Returns a socket that listens at the address. Raises OSError if it is taken."""
    address = Address.parse(listen)
    family = socket.AF_INET6 if address.ip.version == 6 else socket.AF_INET
    return socket.create_server((str(address.ip), address.port), family=family, backlog=_BACKLOG)
