"""Signals for the supervisor's loop: a handler records them, and a descriptor wakes the loop."""

import signal
import socket
from collections import deque
from types import FrameType

HANDLED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)


class Signals:
    """The signals that have arrived and wait for `take`. Owned by the supervisor's one thread."""

    def __init__(self) -> None:
        self._seen: deque[int] = deque()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)

    def install(self) -> None:
        """Installs the signal handlers. Must be called in the main thread, which runs them."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for signum in HANDLED:
            signal.signal(signum, self._record)

    def ignore(self) -> None:
        """Ignores signals from now on, so that they cannot change the exit code, which is known.

        At its end, Python restores the default actions of signals that have a handler. One more
        Ctrl-C would then end the process with another code.
        """
        for signum in HANDLED:
            if signum != signal.SIGCHLD:  # which is ignored by default, without its side effects
                signal.signal(signum, signal.SIG_IGN)

    def fileno(self) -> int:
        """Returns the descriptor that is readable when a signal has arrived."""
        return self._woken.fileno()

    def take(self) -> list[int]:
        """Removes and returns the signals that have arrived, oldest first."""
        try:
            while self._woken.recv(4096):
                pass
        except BlockingIOError:
            pass
        return [self._seen.popleft() for _ in range(len(self._seen))]

    def _record(self, signum: int, _frame: FrameType | None) -> None:
        self._seen.append(signum)
