"""The other end of the control socket: how a command talks to the supervisor."""

import json
import os
import select
import signal
from collections.abc import Iterator
from typing import Any

from kworker.errors import ExitCode, KworkerError, NotRunning
from kworker.instance.state_folder import StateFolder, connect

_ANSWER_TIMEOUT_S = 10.0


class CommandRefused(KworkerError):
    """The supervisor's answer to a request it did not meet, with the exit code it chose."""

    def __init__(self, line: str, exit_code: int) -> None:
        super().__init__(line)
        self.exit_code = ExitCode(exit_code)


class Mute(KworkerError):
    """A supervisor holds the instance and does not answer."""


class ControlClient:
    """Requests to the supervisor of one state folder, a connection each."""

    def __init__(self, name: str, folder: StateFolder) -> None:
        self._name = name
        self._folder = folder

    def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """The one answer to a request; NotRunning, Mute or Refused."""
        for reply in self.follow(verb, **arguments):
            return reply
        raise Mute(f"{self._name}: the supervisor closed the connection without an answer")

    def follow(self, verb: str, **arguments: object) -> Iterator[dict[str, Any]]:
        """Every line of the answer, as it comes, until the supervisor ends it."""
        request = json.dumps({"verb": verb, **arguments}).encode() + b"\n"
        try:
            with connect(self._folder.socket, _ANSWER_TIMEOUT_S) as peer:
                peer.sendall(request)
                with peer.makefile("rb") as lines:
                    for line in lines:
                        yield _judged(json.loads(line))
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise self._nobody() from None
        except PermissionError:
            raise KworkerError(f"{self._folder.socket}: not yours to command") from None
        except ConnectionError:  # it ended; what it had to say has been said
            return
        except TimeoutError:
            pid = self._folder.supervisor_pid()
            raise Mute(f"{self._name}: the supervisor (pid {pid}) does not answer") from None

    def supervisor(self) -> "Supervising":
        """A hold on the running supervisor that no reuse of its pid can confuse; or NotRunning."""
        pid = self._folder.supervisor_pid()
        if pid is None:
            raise self._nobody()
        try:
            return Supervising(pid)
        except ProcessLookupError:
            raise self._nobody() from None

    def _nobody(self) -> KworkerError:
        pid = self._folder.supervisor_pid()
        if pid is not None:
            return Mute(f"{self._name}: the supervisor (pid {pid}) has no control socket")
        return NotRunning(f"{self._name} is not running: `kworker start` starts it")


class Supervising:
    """The supervisor's process, by a descriptor of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def signal(self, signum: signal.Signals) -> None:
        """For when the socket does not answer."""
        try:
            signal.pidfd_send_signal(self._pidfd, signum)
        except ProcessLookupError:
            pass

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the process is gone within the time; for ever with None."""
        readable, _, _ = select.select([self._pidfd], [], [], timeout_s)
        return bool(readable)


def _judged(reply: dict[str, Any]) -> dict[str, Any]:
    if "error" in reply:
        raise CommandRefused(reply["error"], reply["exit_code"])
    return reply
