"""A folder and a Kafka for one run of a benchmark, both gone when it ends."""

import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

KWORKER = Path(sys.executable).with_name("kworker")
_STEAL = 7
ROOT = Path(__file__).resolve().parent.parent


class Stolen:
    """What other virtual machines got of this one's CPU time, since it was made."""

    def __init__(self) -> None:
        self._before = _cpu_ticks()

    def share(self) -> float:
        """Of all that it had."""
        spent = [now - then for now, then in zip(_cpu_ticks(), self._before, strict=True)]
        return spent[_STEAL] / max(1, sum(spent))


def _cpu_ticks() -> list[int]:
    """User, nice, system, idle, iowait, irq, softirq, steal: all CPUs, since the machine began."""
    return [int(word) for word in Path("/proc/stat").read_text().split()[1 : _STEAL + 2]]


class Place(NamedTuple):
    """Where a benchmark's servers are, and its files."""

    kafka: str
    redis: str
    folder: Path


@contextmanager
def servers(name: str, *, redis: bool = False) -> Iterator[Place]:
    """A fresh folder of this name in the checkout, and a Kafka and perhaps a Redis in it.

    At the end they are stopped and their data removed; logs stay in the folder.
    """
    folder = ROOT / name
    sandbox = ("--dir", str(folder / "sandbox"))
    _sandbox("down", *sandbox)  # of a run that was killed
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / ".gitignore").write_text("*\n")
    port, redis_port = _free_port(), _free_port()
    with_redis = ("--redis-port", str(redis_port)) if redis else ("--no-redis",)
    try:
        _sandbox("up", *sandbox, "--kafka-port", str(port), *with_redis)
        yield Place(f"127.0.0.1:{port}", f"redis://127.0.0.1:{redis_port}/0", folder)
    finally:
        _sandbox("down", *sandbox, "--wipe")


def _sandbox(*verb: str) -> None:
    subprocess.run([KWORKER, "sandbox", *verb], stdin=subprocess.DEVNULL, check=True)


def _free_port() -> int:
    """Below the ports that the system gives to outgoing connections."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
