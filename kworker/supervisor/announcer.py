"""Announces readiness and progress: to systemd by datagram, to `start --daemon` by a pipe."""

import os
import time

from kworker.supervisor.daemon import write_line
from kworker.supervisor.limits import Limits
from kworker.supervisor.notify import Notifier

_EXTENSION_S = 15.0
_EXTEND_EVERY_S = 0.2


class Announcer:
    """Sends messages to systemd and to `start --daemon` when due. Owned by the supervisor."""

    def __init__(
        self, notifier: Notifier, ready_fd: int | None, limits: Limits, now: float
    ) -> None:
        self._notifier = notifier
        self._ready_fd = ready_fd
        self._limits = limits
        self._ready_at_latest = now + limits.ready_s
        self._ready = False
        self._status_at = 0.0
        self._watchdog_at = 0.0
        self._extend_at = 0.0
        self._left = -1

    def turn(self, now: float, *, joined: bool, responsive: bool) -> None:
        """Announces readiness once, when the workers have joined; feeds systemd's watchdog.

        After `Limits.ready_s`, announces readiness to systemd even if the workers have not joined.
        Feeds the watchdog only if the workers are `responsive`.
        """
        if joined and self._ready_fd is not None:
            write_line(self._ready_fd, f"ready {os.getpid()}")
            self._ready_fd = None
        if not self._ready and (joined or now >= self._ready_at_latest):
            self._ready = True
            self._notifier.ready()
        every_s = self._notifier.watchdog_every_s
        if every_s is not None and responsive and now >= self._watchdog_at:
            self._watchdog_at = now + every_s
            self._notifier.watchdog()

    def status_due(self, now: float) -> bool:
        """Returns True if it is time to send systemd a new status line."""
        return now >= self._status_at

    def status(self, line: str, now: float) -> None:
        self._status_at = now + self._limits.status_every_s
        self._notifier.status(line)

    def reloading(self) -> None:
        self._notifier.reloading(time.monotonic_ns() // 1000)

    def reloaded(self) -> None:
        """Announces the end of a reload, whether it was carried out or refused."""
        self._notifier.ready()

    def stopping(self) -> None:
        self._notifier.stopping()

    def draining(self, left: int, now: float) -> None:
        """Extends systemd's stop time-out if `left` (records in hand plus workers) changed."""
        if left != self._left and now >= self._extend_at:
            self._left = left
            self._extend_at = now + _EXTEND_EVERY_S
            self._notifier.extend(_EXTENSION_S)
