"""Where the scene is played: an empty folder with a copy of the example, ports, and the time."""

import fcntl
import os
import random
import shutil
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from programs import KWORKER, Failed, Programs

HERE = Path(__file__).resolve().parent
STAGE = HERE.parent.parent / ".demo"
# No JVM of the play lives long enough to gain by optimising what it runs; so each starts in half
# the time. The environment is the way to all of them.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
ENVIRONMENT = {"JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {SHORT_LIVED}"}


class Clock:
    """What time it is in the play, which step is on, and how long each one took."""

    def __init__(self) -> None:
        self._started_s = self._began_s = time.monotonic()
        self.step = ""
        self.took_s: dict[str, float] = {}

    def begin(self, step: str, about: str) -> None:
        self.end()
        self.step, self._began_s = step, time.monotonic()
        print(f"\n{self._began_s - self._started_s:5.1f} s  {step}: {about}", flush=True)

    def end(self) -> None:
        if self.step:
            self.took_s[self.step] = time.monotonic() - self._began_s


def fresh(stage: Path, undo: ExitStack) -> None:
    """An empty stage with a copy of the example; an earlier play's remains are cleared away.

    Raises Failed while another demo plays there.
    """
    stage.mkdir(exist_ok=True)
    (stage / ".gitignore").write_text("*\n")
    lock = undo.enter_context((stage / ".lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed(f"another demo plays in {stage}: wait for its end") from None
    if (stage / "sandbox").exists():
        Programs(stage, {}).output(KWORKER, "sandbox", "down", "--dir", stage / "sandbox")
    for old in (path for path in stage.iterdir() if path.is_dir()):
        shutil.rmtree(old)
    shutil.copytree(HERE, stage / "orders", ignore=shutil.ignore_patterns("__pycache__", "data"))


def free_port() -> int:
    """Below the ports that the system gives to outgoing connections."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
