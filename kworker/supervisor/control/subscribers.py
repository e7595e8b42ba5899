"""Peers of the control socket that follow a drain, a reload or a restart to its end."""

from collections.abc import Callable

from kworker.supervisor.control.server import Connection, Reply


class ProgressSubscribers:
    """Connections that get a progress line at intervals. Owned by the supervisor."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._connections: list[Connection] = []
        self._send_at = 0.0

    def add(self, connection: Connection) -> None:
        self._connections.append(connection)
        self._send_at = 0.0

    def turn(self, now: float, line: Callable[[], Reply]) -> None:
        """Sends a progress line to all connections, if the next line is due."""
        self._connections = [each for each in self._connections if not each.gone]
        if not self._connections or now < self._send_at:
            return
        self._send_at = now + self._every_s
        reply = line()
        for connection in self._connections:
            connection.send(reply)

    def finish(self, reply: Reply) -> None:
        """Sends the last line to all connections, and closes them."""
        for connection in self._connections:
            connection.finish(reply)
        self._connections = []
