"""The supervisor as process 1, as it is in a container without an init."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kworker.errors import KworkerError
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.control.client import ControlClient
from tests.support.bare_service import ROOT, Service
from tests.support.waiting import eventually

# A process namespace, whose processes all end with the first. Root needs no user namespace.
OF_ITS_OWN = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
OF_ITS_OWN += [] if os.getuid() == 0 else ["--user", "--map-root-user"]
ORPHANS = 100


class Container:
    """A supervisor that is process 1 where it runs. Its own pids mean nothing here."""

    def __init__(self, folder: Path) -> None:
        self._client = ControlClient("orders", StateFolder(folder))
        command = [sys.executable, "-m", "tests.support.supervisor_driver", str(folder)]
        self.process = subprocess.Popen([*OF_ITS_OWN, *command], cwd=ROOT, start_new_session=True)

    def status(self) -> dict[str, Any]:
        try:
            return self._client.request("status")
        except KworkerError:
            return {}

    def workers(self) -> list[dict[str, Any]]:
        return self.status().get("workers", [])

    def runs(self) -> None:
        eventually(lambda: self.status().get("state") == "running", what="it runs")

    @property
    def first(self) -> psutil.Process:
        """The supervisor."""
        [supervisor] = psutil.Process(self.process.pid).children()
        return supervisor

    def children(self, title: str) -> list[psutil.Process]:
        """The supervisor's children with a title that begins so; zombies have none."""
        found = []
        for child in self.first.children():
            try:
                found += [child] if child.cmdline()[0].startswith(title) else []
            except (psutil.NoSuchProcess, IndexError):
                continue
        return found

    def zombies(self) -> int:
        states = []
        for child in self.first.children(recursive=True):
            try:
                states.append(child.status())
            except psutil.NoSuchProcess:
                continue
        return states.count(psutil.STATUS_ZOMBIE)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    Service(tmp_path).write(behaviour={"*": {"leaves_orphans": True}})
    made = Container(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_the_first_process_reaps_replaces_and_drains(container: Container) -> None:
    """It inherits every orphan, and the kernel keeps from it each signal without a handler."""
    container.runs()
    assert container.status()["pid"] == 1
    # Each turn of a worker leaves an orphan.
    eventually(lambda: container.status().get("counters", {}).get("done", 0) > ORPHANS)
    eventually(lambda: container.zombies() < ORPHANS / 10, what="the orphans are reaped")

    container.children("kworker: worker 0")[0].kill()
    eventually(lambda: [row["restarts"] for row in container.workers()] == [1, 0])
    container.runs()

    container.first.send_signal(signal.SIGTERM)
    assert container.process.wait(30) == 0
