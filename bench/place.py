"""A folder and a Kafka for one run of a benchmark, both gone when it ends."""

import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.ours import KWORKER

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


@contextmanager
def kafka(name: str) -> Iterator[tuple[str, Path]]:
    """A fresh folder of this name in the checkout, and the address of a Kafka that lives in it.

    At the end Kafka is stopped and its data removed; logs stay in the folder.
    """
    folder = ROOT / name
    sandbox = ("--dir", str(folder / "sandbox"))
    _sandbox("down", *sandbox)  # of a run that was killed
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / ".gitignore").write_text("*\n")
    port = _free_port()
    try:
        _sandbox("up", *sandbox, "--kafka-port", str(port), "--no-redis")
        yield f"127.0.0.1:{port}", folder
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
