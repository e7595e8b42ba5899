"""The client of the control socket, which kworker's commands use."""

import json
import os
import select
import signal
from collections.abc import Iterator
from typing import Any

from kworker.errors import ExitCode, KworkerError, NotRunning
from kworker.instance.state_folder import StateFolder, connect

_ANSWER_TIMEOUT_S = 10.0  # for each line; while a request takes its time, progress comes


class CommandRefused(KworkerError):
    """The supervisor refused a request; `exit_code` is the code that the command exits with."""

    def __init__(self, line: str, exit_code: int) -> None:
        super().__init__(line)
        self.exit_code = ExitCode(exit_code)


class NotResponding(KworkerError):
    """The instance has a supervisor, but it does not answer requests."""


class ControlClient:
    """Sends requests to the supervisor of one state folder, each over its own connection."""

    def __init__(
        self, name: str, folder: StateFolder, answer_timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> None:
        """`name` names the service in errors; `answer_timeout_s` is the longest wait for a line."""
        self.name = name
        self._folder = folder
        self._answer_timeout_s = answer_timeout_s

    def request(self, verb: str, **arguments: object) -> dict[str, Any]:
        """Sends a request and returns the only line of its reply.

        Raises NotRunning, NotResponding or CommandRefused, and KworkerError if this user may not
        send requests.
        """
        for reply in self.follow(verb, **arguments):
            return reply
        raise NotResponding(
            f"{self.name}: the supervisor closed the connection without a reply; it may have"
            " ended: try again"
        )

    def follow(self, verb: str, **arguments: object) -> Iterator[dict[str, Any]]:
        """Sends a request and yields each line of the reply, until the supervisor ends it.

        Raises NotRunning, NotResponding or CommandRefused, and KworkerError if this user may not
        send requests.
        """
        request = json.dumps({"verb": verb, **arguments}).encode() + b"\n"
        try:
            with connect(self._folder.socket, self._answer_timeout_s) as peer:
                peer.sendall(request)
                with peer.makefile("rb") as lines:
                    for line in lines:
                        yield _checked(json.loads(line))
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise self._not_there() from None
        except PermissionError:
            raise KworkerError(
                f"{self._folder.socket}: permission denied: only the service's user and root may"
                " send commands to it"
            ) from None
        except ConnectionError:  # the supervisor has ended, and all that it sent has been read
            return
        except TimeoutError:
            pid = self._folder.supervisor_pid()
            problem = f"{self.name}: the supervisor (pid {pid}) does not answer"
            raise NotResponding(problem) from None

    def supervisor(self) -> "SupervisorHandle":
        """Returns a handle of the running supervisor. Raises NotRunning or NotResponding."""
        pid = self._folder.supervisor_pid()
        if pid is None:
            raise self._not_there()
        try:
            return SupervisorHandle(pid)
        except ProcessLookupError:
            raise self._not_there() from None

    def _not_there(self) -> KworkerError:
        pid = self._folder.supervisor_pid()
        if pid is not None:
            return NotResponding(f"{self.name}: the supervisor (pid {pid}) has no control socket")
        return NotRunning(f"{self.name} is not running: `kworker start` starts it")


class SupervisorHandle:
    """A handle of the supervisor's process by a pidfd, which is safe even if the pid is reused."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def signal(self, signum: signal.Signals) -> None:
        """Sends the process a signal; does nothing if the process has ended."""
        try:
            signal.pidfd_send_signal(self._pidfd, signum)
        except ProcessLookupError:
            pass

    def wait(self, timeout_s: float | None) -> bool:
        """Waits up to `timeout_s`, or for ever if it is None; returns True if the process ended."""
        readable, _, _ = select.select([self._pidfd], [], [], timeout_s)
        return bool(readable)


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    if "error" in reply:
        raise CommandRefused(reply["error"], reply["exit_code"])
    return reply
