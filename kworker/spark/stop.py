"""The request to stop the job: a signal, or the death of its supervisor."""

import ctypes
import os
import select
import signal
import socket
from collections.abc import MutableMapping

PARENT_VARIABLE = "KWORKER_PARENT_PID"
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


class StopRequest:
    """A stop by TERM or INT, which a signal handler records and the main thread polls."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self.made = False

    def listen(self) -> None:
        """Installs the handlers of TERM and INT.

        The job calls this again after pyspark has installed a handler of INT of its own.
        """
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._record)

    def _record(self, _number: int, _frame: object) -> None:
        self.made = True

    def wait(self, timeout_s: float) -> bool:
        """Waits for the request. True if it has come already, or comes within `timeout_s`."""
        if not self.made:
            select.select([self._receiver], [], [], timeout_s)
            self._drain()
        return self.made

    def _drain(self) -> None:
        try:
            self._receiver.recv(64)
        except BlockingIOError:
            pass  # no signal came within the time


def end_with_parent(environment: MutableMapping[str, str]) -> bool:
    """Has the kernel send TERM to this process when the supervisor dies.

    Does nothing if the environment names no supervisor. Returns False if the supervisor is dead
    already. The kernel watches the thread that started this process; the supervisor has no other
    thread.
    """
    # Removed from the environment: it is no setting, and not for this process's children.
    parent = environment.pop(PARENT_VARIABLE, None)
    if not parent:
        return True
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return str(os.getppid()) == parent
