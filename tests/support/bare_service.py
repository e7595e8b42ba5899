"""A service under test: the driver as a real process, with what can be asked and done to it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from kworker.instance.state_folder import StateFolder
from kworker.supervisor.control.client import ControlClient
from tests.support.config_text import smallest
from tests.support.lines import whole_lines
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
MAIN = "from kworker.cli.main import main; main()"
SETTINGS = ("settings", "limits", "preflight", "behaviour")


def python(
    *arguments: object, cwd: Path = ROOT, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs `python …` to its end."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def command(folder: Path, *arguments: str) -> list[str]:
    """`kworker …` for `python`, with a file that names the service in the folder."""
    return ["-c", MAIN, *arguments, "--config", str(_config(folder))]


def _config(folder: Path) -> Path:
    """Written once: a service that watches its folder would take a second time for a change."""
    config = folder / "kworker.toml"
    if not config.exists():
        config.write_text(smallest(state_dir="."))
    return config


class Service:
    """One folder, and the supervisors that run in it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = ControlClient("orders", StateFolder(folder))
        self.stderr = folder / "stderr"
        self.process: subprocess.Popen[bytes] | None = None
        self._pids: set[int] = set()
        _config(folder)

    def write(self, **settings: dict[str, Any]) -> None:
        """Writes `settings.json`, `limits.json`, `preflight.json` or `behaviour.json`."""
        for name, value in settings.items():
            assert name in SETTINGS
            (self.folder / f"{name}.json").write_text(json.dumps(value))

    def start(self, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """A new supervisor; returns at once."""
        with self.stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.supervisor_driver", str(self.folder)],
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stderr=stderr,
                start_new_session=True,
            )
        return self.process

    def serve(self, workers: int = 2, environment: dict[str, str] | None = None) -> None:
        """A new supervisor, once so many workers run."""
        self.start(environment)
        eventually(lambda: len(self.running()) == workers, what="workers run")

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def status(self) -> dict[str, Any]:
        """The document; {} while nobody answers."""
        try:
            document = self.client.request("status")
        except Exception:  # noqa: BLE001 - not yet, or no more
            return {}
        self._pids.update(row["pid"] for row in document["workers"] if row["pid"])
        return document

    def workers(self) -> list[dict[str, Any]]:
        return self.status().get("workers", [])

    def running(self) -> dict[int, int]:
        """Pid by slot of those that have joined."""
        return {row["slot"]: row["pid"] for row in self.workers() if row["phase"] == "running"}

    def births(self, slot: int | None = None, of: str = "births") -> list[float]:
        """When the lives began, of one slot or of all; of the delay process `delay-births`."""
        path = self.folder / of
        lines = [line.split() for line in whole_lines(path)]
        self._pids.update(int(pid) for _, pid, _ in lines)
        return [float(at) for number, _, at in lines if slot is None or int(number) == slot]

    def send(self, *signums: signal.Signals) -> None:
        for signum in signums:
            os.kill(self.pid, signum)

    def delay(self) -> dict[str, Any]:
        """The delay process's row of the status; {} while nobody answers."""
        return self.status().get("delay", {})

    def delay_runs(self) -> int:
        """Waits until the delay process does, which now hears signals; its pid."""
        row = eventually(lambda: (row := self.delay()).get("phase") == "running" and row)
        return int(row["pid"])

    def kill(self, slot: int) -> float:
        """Kills the worker of a slot once it runs, and waits until that is known; when it was."""
        pid = eventually(lambda: self.running().get(slot))
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: self.running().get(slot) != pid, timeout_s=5)
        return killed

    def exit_code(self, timeout_s: float = 15) -> int:
        """Waits for the end."""
        assert self.process
        return self.process.wait(timeout_s)

    def said(self) -> str:
        """All that it wrote to its standard error."""
        return self.stderr.read_text()

    def says(self, words: str) -> None:
        """Waits until it has said so."""
        eventually(lambda: words in self.said(), what=words)

    def alive(self) -> list[int]:
        """Of the workers and delay processes that ever were, those that live."""
        self.births()
        self.births(of="delay-births")
        return [pid for pid in self._pids if _lives(pid)]

    def end(self) -> None:
        """Leaves nothing behind, whatever the test did."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "kworker" in process.cmdline()[0]
    except (psutil.NoSuchProcess, IndexError):
        return False
