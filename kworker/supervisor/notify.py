"""systemd's sd_notify protocol: one datagram for each message."""

import os
import socket
from collections.abc import MutableMapping

_MESSAGE_BYTES_MAX = 4096  # systemd ignores longer messages, and those that are not UTF-8


class Notifier:
    """Sends messages to `$NOTIFY_SOCKET`, or drops them where there is none. Never blocks.

    Owned by the supervisor. Removes systemd's variables from the environment, so that no child
    can send messages for the service. A message that systemd cannot take is dropped, too.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        variables = {name: environment.pop(name, "") for name in _VARIABLES}
        self._address = _address(variables["NOTIFY_SOCKET"])
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.watchdog_every_s = _watchdog_every_s(variables)
        self._status = ""

    def ready(self) -> None:
        """Reports that the service has started, or that a reload is over."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Sends a line for `systemctl status`, if it differs from the last one sent."""
        if text != self._status:
            self._status = text
            self._send("STATUS=" + text.replace("\n", " "))

    def reloading(self, now_us: int) -> None:
        """Reports that a reload began at this time of the monotonic clock, in microseconds."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}")

    def stopping(self) -> None:
        """Reports that the service has begun to stop."""
        self._send("STOPPING=1")

    def extend(self, seconds: float) -> None:
        """Requests that systemd waits this many seconds more, from now, for the stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def watchdog(self) -> None:
        """Feeds systemd's watchdog: reports that supervisor and workers respond."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        data = message.encode(errors="backslashreplace")[:_MESSAGE_BYTES_MAX]
        try:
            self._socket.sendto(data.decode(errors="ignore").encode(), self._address)
        except OSError:  # systemd is restarting, or its queue is full
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


def _watchdog_every_s(variables: dict[str, str]) -> float | None:
    """Returns half of the watchdog's time-out (s); None if systemd does not watch this process."""
    meant_for_us = variables["WATCHDOG_PID"] in ("", str(os.getpid()))
    if not variables["WATCHDOG_USEC"].isdigit() or not meant_for_us:
        return None
    return int(variables["WATCHDOG_USEC"]) / 2e6 or None
