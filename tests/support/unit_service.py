"""A service and its Spark job under a real systemd, by the units that are printed."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kworker import jars
from kworker.cli.units import UnitValues, service_unit, spark_unit, target_unit
from kworker.errors import KworkerError
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.control.client import ControlClient
from tests.support.booted_systemd import PROGRAM, USER, BootedSystemd
from tests.support.service import MAIN, ROOT
from tests.support.spark_service import SLOW_S
from tests.support.waiting import eventually

_OF_JAVA = ("JAVA_HOME", "JAVA_TOOL_OPTIONS")


class UnitService:
    """The units of the service `name`, whose `kworker.toml` is in a folder.

    They see this folder as /srv/service; `tables`, to which they may write, as /srv/tables; and
    root's file `secret/token` as the credential `token`.
    """

    def __init__(self, name: str, folder: Path, tables: Path, secret: Path) -> None:
        self.name = f"kworker@{name}.service"
        self.spark = f"kworker-spark@{name}.service"
        values = UnitValues(
            PROGRAM,
            user=USER,
            config="/srv/service/kworker.toml",
            reads=(Path(sys.base_prefix),),
            writes=(Path("/srv/tables"),),
        )
        credential = "[Service]\nLoadCredential=token:/srv/secret/token\n"
        units = {
            "kworker@.service": service_unit(values),
            "kworker-spark@.service": spark_unit(values),
            "kworker.target": target_unit(),
            f"{self.name}.d/secret.conf": credential,
        }
        binds = {
            "/srv/checkout": ROOT,
            "/srv/service": folder,
            "/srv/tables": tables,
            "/srv/secret": secret,
            "/srv/cache": jars.cache_folder(),
        }
        self.systemd = BootedSystemd(units, _script(), binds)
        self._client = ControlClient(
            name, StateFolder(self.systemd.see(f"/var/lib/kworker/{name}"))
        )

    def do(self, *arguments: str) -> None:
        """Runs systemctl, which waits until systemd has done it."""
        done = self.systemd.systemctl(*arguments)
        assert done.returncode == 0, f"{done.stderr}{self.said()}"

    def show(self, name: str) -> str:
        return self.systemd.show(self.name, name)

    def said(self) -> str:
        return f"{self.systemd.said(self.name)}\n{self.systemd.said(self.spark)}"

    def status(self) -> dict[str, Any]:
        """The document; {} while nobody answers."""
        try:
            return self._client.request("status")
        except KworkerError:
            return {}

    def says(self, words: str) -> None:
        """Waits until its status line begins so."""
        self.until(lambda: self.show("StatusText").startswith(words), words)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits, and if in vain tells what was said."""
        try:
            eventually(condition, timeout_s=SLOW_S, every_s=0.1, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None

    def kill_worker(self) -> None:
        """Kills the first worker, once no worker waits for its start any more."""
        self.until(lambda: self._pids() and all(self._pids()), "every worker has a process")
        self.systemd.process(self._pids()[0]).kill()

    def _pids(self) -> list[int]:
        """Of the workers; 0 for one that has died and not started again."""
        return [row["pid"] or 0 for row in self.status().get("workers", [])]

    def kill_supervisor(self) -> None:
        self.systemd.process(int(self.show("MainPID"))).kill()


def _script() -> str:
    """Stands for the command: with the tests' interpreter, this checkout, and fetched archives."""
    variables = {
        "PYTHONPATH": "/srv/checkout",
        "KWORKER_CACHE": "/srv/cache",
        "KWORKER_STATE_DIR": "$STATE_DIRECTORY",
    }
    variables |= {name: os.environ[name] for name in _OF_JAVA if name in os.environ}
    exports = [f'export {name}="{value}"' for name, value in variables.items()]
    return "\n".join(["#!/bin/sh", *exports, f"exec {sys.executable} -c '{MAIN}' \"$@\""])
