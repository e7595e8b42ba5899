"""The stage of the scene: an empty folder with a copy of the example, free ports, a clock."""

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
# No JVM of the scene lives long enough for optimised code to pay, and without it each starts in
# half the time. The environment reaches all of them.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
ENVIRONMENT = {"JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {SHORT_LIVED}"}


class Clock:
    """The time in the scene, its current step, and the duration of each step."""

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
    """Makes an empty stage with a copy of the example, and removes that of an earlier run.

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
    """A free port below those that the system gives to outgoing connections."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
