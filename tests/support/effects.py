"""An outside service that counts what it is asked: the effects that handlers have on the world."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

# What a handler needs to have its effect: `ask(identity)`.
CLIENT = """
import http.client, threading

_own = threading.local()

def ask(identity):
    if not hasattr(_own, "connection"):
        _own.connection = http.client.HTTPConnection("127.0.0.1", {port}, timeout=30)
    _own.connection.request("POST", "/" + identity)
    _own.connection.getresponse().read()
"""


class Effects:
    """How often the service was asked for each identity."""

    def __init__(self, port: int) -> None:
        self.client = CLIENT.format(port=port)
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def add(self, identity: str) -> None:
        with self._lock:
            self._counts[identity] += 1

    @property
    def counts(self) -> Counter[str]:
        with self._lock:
            return Counter(self._counts)


@contextmanager
def effects() -> Iterator[Effects]:
    """Serves until the block ends."""
    found: list[Effects] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            found[0].add(self.path.lstrip("/"))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.append(Effects(server.server_address[1]))
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found[0]
    finally:
        server.shutdown()
        server.server_close()
