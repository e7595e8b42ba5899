"""A folder and a Kafka for one run of a benchmark, both removed at its end."""

import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

KWORKER = Path(sys.executable).with_name("kworker")
ROOT = Path(__file__).resolve().parent.parent


class Place(NamedTuple):
    """The addresses of a benchmark's servers, and its folder."""

    kafka: str
    redis: str
    folder: Path


@contextmanager
def servers(name: str, *, redis: bool = False) -> Iterator[Place]:
    """Starts a Kafka, and with `redis` a Redis, in a fresh folder of the checkout.

    Stops them at the end and removes their data; logs stay in the folder. From now on, SIGTERM ends
    the program as Ctrl-C does, so that what it has started ends with it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = ROOT / name
    sandbox = ("--dir", str(folder / "sandbox"))
    _sandbox("down", *sandbox)  # left over by a killed run
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / ".gitignore").write_text("*\n")
    port, redis_port = free_port(), free_port()
    with_redis = ("--redis-port", str(redis_port)) if redis else ("--no-redis",)
    try:
        _sandbox("up", *sandbox, "--kafka-port", str(port), *with_redis)
        yield Place(f"127.0.0.1:{port}", f"redis://127.0.0.1:{redis_port}/0", folder)
    finally:
        _sandbox("down", *sandbox, "--wipe")


def _sandbox(*verb: str) -> None:
    subprocess.run([KWORKER, "sandbox", *verb], stdin=subprocess.DEVNULL, check=True)


def free_port() -> int:
    """A free port below those that the system gives to outgoing connections."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
