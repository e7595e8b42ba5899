"""Peers of the control socket that stay to see something through."""

from collections.abc import Callable

from kworker.supervisor.control.server import Connection, Reply


class ProgressSubscribers:
    """Gets a line of progress now and then, and one at the end. Owned by the supervisor."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._all: list[Connection] = []
        self._tell_at = 0.0

    def add(self, connection: Connection) -> None:
        self._all.append(connection)
        self._tell_at = 0.0

    def turn(self, now: float, line: Callable[[], Reply]) -> None:
        """Sends a line to all when it is due."""
        self._all = [connection for connection in self._all if not connection.gone]
        if not self._all or now < self._tell_at:
            return
        self._tell_at = now + self._every_s
        reply = line()
        for connection in self._all:
            connection.send(reply)

    def finish(self, reply: Reply) -> None:
        """Sends all the last line and lets them go."""
        for connection in self._all:
            connection.finish(reply)
        self._all = []
