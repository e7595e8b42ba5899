"""A folder and a Kafka for one run of a benchmark, both gone when it ends."""

import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.ours import KWORKER

ROOT = Path(__file__).resolve().parent.parent


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
