"""Telling systemd how the service is doing: the sd_notify protocol, by one datagram a message."""

import os
import socket
from collections.abc import MutableMapping


class Notifier:
    """Speaks to `$NOTIFY_SOCKET`, or to nobody. Never blocks; a lost message is followed by others.

    Owned by the supervisor. The variables are taken out of the environment, so
    that no child believes itself to be the service.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        taken = {name: environment.pop(name, "") for name in _VARIABLES}
        self._address = _address(taken["NOTIFY_SOCKET"])
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.watchdog_every_s = _watchdog_every_s(taken)
        self._status = ""

    def ready(self) -> None:
        """The service has started, or a reload is over."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent when it differs from the last."""
        if text != self._status:
            self._status = text
            self._send("STATUS=" + text.replace("\n", " "))

    def reloading(self, now_us: int) -> None:
        """A reload has begun, at this time of the monotonic clock."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}")

    def stopping(self) -> None:
        """The drain has begun."""
        self._send("STOPPING=1")

    def extend(self, seconds: float) -> None:
        """What goes on now may take so much longer, from here."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def watchdog(self) -> None:
        """Supervisor and workers are alive."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError:  # systemd restarts, or its queue is full
            pass


_VARIABLES = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
)


def _address(text: str) -> str:
    return "\0" + text[1:] if text.startswith("@") else text


def _watchdog_every_s(taken: dict[str, str]) -> float | None:
    """Half of what systemd allows, or None when it does not watch this process."""
    meant_for_us = taken["WATCHDOG_PID"] in ("", str(os.getpid()))
    if not taken["WATCHDOG_USEC"].isdigit() or not meant_for_us:
        return None
    return int(taken["WATCHDOG_USEC"]) / 2e6 or None
