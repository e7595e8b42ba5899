"""The control socket: one request line in, reply lines out; it never blocks the supervisor."""

import json
import os
import selectors
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kworker.instance.state_folder import short_address

LINE_BYTES_MAX = 64 << 10
CONNECTIONS_MAX = 64
REQUEST_TIMEOUT_S = 2.0
REPLY_TIMEOUT_S = 10.0  # for a peer that does not read its reply
REPLY_BYTES_MAX = 8 << 20
_ACCEPTS_A_TURN = 32

Request = dict[str, Any]
Reply = dict[str, Any]


class Connection:
    """A connection from a command. `send` queues a line of the reply, `finish` the last line."""

    def __init__(self, peer: socket.socket, now: float) -> None:
        self.peer = peer
        self.has_request = False
        self.gone = False
        self._moved_at = now  # when bytes last moved, either way
        self._received = bytearray()
        self._to_send = bytearray()
        self._last = False

    def send(self, reply: Reply) -> None:
        """Queues a line; drops the connection if it has more than REPLY_BYTES_MAX unread bytes."""
        self._to_send += json.dumps(reply).encode() + b"\n"
        self.gone = self.gone or len(self._to_send) > REPLY_BYTES_MAX

    def finish(self, reply: Reply) -> None:
        """Queues the last line of the reply; the connection is closed once that is sent."""
        self.send(reply)
        self._last = True

    def refuse(self, problem: str, exit_code: int) -> None:
        """Queues an error as the last line of the reply; the command exits with `exit_code`."""
        self.finish({"error": problem, "exit_code": exit_code})

    def receive(self) -> bytes | None:
        """Reads what has arrived; returns the request line once it is complete, else None."""
        try:
            data = self.peer.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            return None
        except OSError:
            self.gone = True
            return None
        self._received += data
        line, newline, _ = self._received.partition(b"\n")
        self.gone = not data and not newline
        self.has_request = bool(newline) or len(self._received) >= LINE_BYTES_MAX
        return bytes(line[:LINE_BYTES_MAX]) if self.has_request else None

    def flush(self, now: float) -> None:
        """Sends as many queued bytes as the peer accepts, without blocking."""
        try:
            while self._to_send:
                del self._to_send[: self.peer.send(self._to_send)]
                self._moved_at = now
        except BlockingIOError:
            return
        except OSError:
            self.gone = True
        self.gone = self.gone or self._last

    @property
    def pending(self) -> bool:
        """True if queued bytes wait to be sent."""
        return bool(self._to_send)

    def is_late(self, now: float) -> bool:
        """Returns True if the peer takes too long to send its request or to read the reply."""
        if not self.has_request:
            return now - self._moved_at > REQUEST_TIMEOUT_S
        return self.pending and now - self._moved_at > REPLY_TIMEOUT_S


class ControlServer:
    """Serves the control socket in the state folder, woken by the supervisor's selector.

    `verbs` maps the verb of a request to the function that answers it. The sizes of reads, lines
    and queues, and the number of connections, are bounded. Owned by the supervisor.
    """

    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        verbs: Mapping[str, Callable[[Request, Connection], None]],
        now: float,
    ) -> None:
        self._path = path
        self._selector = selector
        self._verbs = verbs
        self._connections: dict[int, Connection] = {}
        self._now = now
        self._listener = _listen(path)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def turn(self, now: float) -> None:
        """Sends queued replies, and closes connections that are finished, broken or too slow."""
        self._now = now
        for connection in list(self._connections.values()):
            connection.flush(now)
            if connection.gone or connection.is_late(now):
                self._drop(connection)
            elif connection.has_request:
                self._watch_writes(connection)

    def close(self) -> None:
        """Stops listening, and closes each connection after a last attempt to send its replies."""
        self._selector.unregister(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for connection in list(self._connections.values()):
            connection.flush(self._now)
            self._drop(connection)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                peer, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # out of descriptors: close an idle peer to free one
                self._make_room()
                return
            if _uid(peer) in (0, os.geteuid()):
                self._add(peer)
            else:
                peer.close()

    def _add(self, peer: socket.socket) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            self._make_room()
        peer.setblocking(False)
        connection = Connection(peer, self._now)
        self._connections[peer.fileno()] = connection
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection: Connection) -> None:
        line = None if connection.has_request or connection.gone else connection.receive()
        if line is None:
            return
        try:
            request = _parse(line)
            act = self._verbs[request["verb"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            connection.refuse(f"not a valid request; verbs are {', '.join(self._verbs)}", 2)
        else:
            act(request, connection)

    def _watch_writes(self, connection: Connection) -> None:
        """Has the selector report when the peer can read more, while queued bytes wait.

        If no bytes are queued, the selector stops watching the peer.
        """
        registered = connection.peer in self._selector.get_map()
        if connection.pending and registered:
            self._selector.modify(connection.peer, selectors.EVENT_WRITE, _nothing)
        elif connection.pending:
            self._selector.register(connection.peer, selectors.EVENT_WRITE, _nothing)
        elif registered:
            self._selector.unregister(connection.peer)

    def _make_room(self) -> None:
        """Closes the oldest connection that has not sent its request.

        If all connections have sent one, closes the oldest of all.
        """
        waiting = [c for c in self._connections.values() if not c.has_request]
        for connection in (waiting or list(self._connections.values()))[:1]:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.gone = True
        if connection.peer in self._selector.get_map():
            self._selector.unregister(connection.peer)
        del self._connections[connection.peer.fileno()]
        connection.peer.close()


def _listen(path: Path) -> socket.socket:
    """Returns a listening socket that only its owner can reach; first removes an old socket."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with short_address(path) as address:
        before = os.umask(0o177)
        try:
            listener.bind(address)
        finally:
            os.umask(before)
    listener.listen(128)
    listener.setblocking(False)
    return listener


def _uid(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _parse(line: bytes) -> Request:
    request = json.loads(line)
    if not isinstance(request, dict):
        raise ValueError("the request is not a JSON object")
    return request


def _nothing() -> None:
    """Does nothing when a peer is ready to read more: `turn` sends the queued replies."""
