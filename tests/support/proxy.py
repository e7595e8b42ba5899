"""A TCP proxy before a broker: it knows Kafka's frames, and can keep some of them for later."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from tests.support.encoding import Reader, without_host
from tests.support.waiting import eventually


class Api(IntEnum):
    """The requests that tests hold, by Kafka's own numbers."""

    PRODUCE = 0
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    SYNC_GROUP = 14
    ADD_PARTITIONS = 24
    ADD_OFFSETS = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


# From these versions on, requests and answers have tags.
_COMPACT = {Api.OFFSET_COMMIT: 8, Api.END_TXN: 3, Api.TXN_OFFSET_COMMIT: 3}


class Request(NamedTuple):
    """What the header of a request tells."""

    api: int
    version: int
    correlation: int
    client: str


class Held:
    """One request that is kept back, with all that follows it on its connection, as a network
    would: its client sees silence, may give up, and tries again on another connection."""

    def __init__(self, api: Api, client: str) -> None:
        self.api = api
        self.client = client
        self.request: Request | None = None
        self.answer: bytes | None = None  # behind its header
        self._go_on = threading.Event()

    def matches(self, request: Request) -> bool:
        wanted = request.api == self.api and request.client == self.client
        return self.request is None and wanted

    def caught(self, timeout_s: float = 30.0) -> None:
        """Waits until there is one."""
        what = f"a {self.api.name} of {self.client}"
        eventually(lambda: self.request, timeout_s=timeout_s, every_s=0.002, what=what)

    def release(self, timeout_s: float = 30.0) -> None:
        """Lets the broker have it, be its client there or not, and waits for the answer."""
        self._go_on.set()
        eventually(lambda: self.answer, timeout_s=timeout_s, every_s=0.002, what="an answer")

    def errors(self) -> Iterator[int]:
        """Of the end of a transaction, or of each partition of a commit; 0 is none."""
        assert self.request
        assert self.answer
        reader = Reader(self.answer, compact=self.request.version >= _COMPACT[self.api])
        reader.tags()
        reader.skip("i")  # for how long the client is throttled
        if self.api == Api.END_TXN:
            yield reader.number("h")
            return
        for _ in reader.each():
            reader.skip("s")
            for _ in reader.each():
                reader.skip("i")
                yield reader.number("h")
                reader.tags()
            reader.tags()

    def let_go(self) -> None:
        """The same, without waiting."""
        self._go_on.set()

    def wait(self) -> None:
        """On the connection's own thread."""
        self._go_on.wait()


class Proxy:
    """Listens on one port for the broker on another, which names this one to its clients.

    A thread for each direction of each connection; what they find out is only ever added to.
    """

    def __init__(self, port: int, broker: int) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", port))
        self._rules: list[Held] = []
        self._lost: set[tuple[int, str]] = set()
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self.answered: list[Request] = []
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def hold(self, api: Api, client: str) -> Held:
        """The next such request of a client is kept back."""
        held = Held(api, client)
        with self._lock:
            self._rules.append(held)
        return held

    def lose(self, client: str, *apis: Api) -> None:
        """From now on such requests of a client reach nobody; what follows them does."""
        with self._lock:
            self._lost |= {(api, client) for api in apis}

    def loses(self, request: Request) -> bool:
        with self._lock:
            return (request.api, request.client) in self._lost

    def count(self, api: Api, client: str) -> int:
        """How many such requests of a client were answered."""
        return sum(1 for each in list(self.answered) if (each.api, each.client) == (api, client))

    def passes(self, api: Api, client: str) -> None:
        """Waits until one more of these has been answered."""
        before = self.count(api, client)
        eventually(
            lambda: self.count(api, client) > before,
            every_s=0.002,
            what=f"another {api.name} of {client}",
        )

    def let_all_go(self) -> None:
        """Holds nothing back and loses nothing, from now on."""
        with self._lock:
            self._lost = set()
            rules, self._rules = self._rules, []
        for held in rules:
            held.let_go()

    def close(self) -> None:
        self.let_all_go()
        # A thread that waits for connections keeps a listener that is only closed.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            link.close()

    def held_by(self, request: Request) -> Held | None:
        """The first that has waited for such a one."""
        with self._lock:
            for held in self._rules:
                if held.matches(request):
                    held.request = request
                    return held
        return None

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self._broker))
                except OSError:
                    client.close()
                    continue
                self._links.append(_Link(self, client, broker))


class _Link:
    """One connection of a client, and the one to the broker that goes with it."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._broker = client, broker
        self._under_way: dict[int, tuple[Request, Held | None]] = {}  # by correlation
        for each in (client, broker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pump in (self._up, self._down):
            threading.Thread(target=pump, name="proxy", daemon=True).start()

    def close(self) -> None:
        for each in (self._client, self._broker):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _up(self) -> None:
        with self._client, suppress(OSError):
            while frame := _frame(self._client):
                request = _request(frame)
                if self._proxy.loses(request):
                    continue
                held = self._proxy.held_by(request)
                self._under_way[request.correlation] = (request, held)
                if held:
                    held.wait()
                _send(self._broker, frame)
        with suppress(OSError):
            self._broker.shutdown(socket.SHUT_WR)

    def _down(self) -> None:
        with self._broker, suppress(OSError):
            while frame := _frame(self._broker):
                (correlation,) = struct.unpack_from(">i", frame)
                # A producer that wants no acknowledgement is answered nothing.
                request, held = self._under_way.pop(correlation)
                self._proxy.answered.append(request)
                if held:
                    held.answer = frame[4:]
                with suppress(OSError):  # it may have gone, and the broker has more to say
                    _send(self._client, frame)
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)


def _request(frame: bytes) -> Request:
    api, version, correlation, length = struct.unpack_from(">hhih", frame)
    client = frame[10 : 10 + length].decode() if length > 0 else ""
    return Request(api, version, correlation, without_host(client))


def _frame(source: socket.socket) -> bytes:
    """The next one, without its length; nothing at the end of the connection."""
    length = _exactly(source, 4)
    return _exactly(source, *struct.unpack(">i", length)) if length else b""


def _exactly(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = source.recv(min(1 << 20, size - len(found)))
        if not more:
            return b""
        found += more
    return bytes(found)


def _send(target: socket.socket, frame: bytes) -> None:
    target.sendall(struct.pack(">i", len(frame)) + frame)
