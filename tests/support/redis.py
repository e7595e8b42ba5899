"""A Redis of a test's own, which it may take away and give back."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kworker.sandbox.redis import Redis
from tests.support.waiting import eventually


class OwnRedis:
    """One server; what it holds survives its end."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._server = Redis(folder, port)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._server.prepare()
        self._process = subprocess.Popen(self._server.command(), stdout=subprocess.DEVNULL)
        eventually(self._server.answers, what="Redis answers")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None


@contextmanager
def own_redis(folder: Path, port: int) -> Iterator[OwnRedis]:
    """Runs until the block ends."""
    server = OwnRedis(folder, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()
