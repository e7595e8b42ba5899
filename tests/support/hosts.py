"""Hosts that run the Spark job of one service: each has its own name, folder and checkpoints."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.support import namespaces, written
from tests.support.service import ROOT, lives, named, stop

COMMAND = "from kworker.cli.spark.commands import app; app()"
GONE_TIMEOUT_S = 60.0
_WORDS = 1_500  # characters of a log, where something is missed


class Marks(NamedTuple):
    """What a checkpoint says of its batches, as numbers; -1 for none."""

    planned: int
    noted: int

    @property
    def under_way(self) -> bool:
        return self.planned > self.noted


class Host:
    """A folder with `kworker.toml`, and `kworker spark run` there.

    `address` is the host's name, too: one that everybody can resolve.
    """

    def __init__(self, folder: Path, address: str, config: str) -> None:
        self.address = address
        self.folder = folder
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._jvm: psutil.Process | None = None
        self._prelude = partial(namespaces.rename_host, address) if RENAMED else None
        folder.mkdir(parents=True)
        (folder / "kworker.toml").write_text(config)

    def start(self, *arguments: str) -> None:
        """Returns at once."""
        self._starts += 1
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, "run", "--config", "kworker.toml", *arguments],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=errors,
                preexec_fn=self._prelude,
            )

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_up(self) -> bool:
        """Whether its job has started: it writes the tables, or waits until it may."""
        told = self.progress()
        own = self._process is not None and told.get("pid") == self._process.pid
        return self.runs and own and told["state"] in ("running", "standby")

    def ended(self) -> int | None:
        """The exit code, once there is one."""
        return None if self._process is None else self._process.poll()

    def python(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def jvm(self) -> psutil.Process:
        """The one that writes; found once, since looking takes as long as a batch does.

        LookupError where there is none.
        """
        if self._jvm is None or not lives(self._jvm):
            found = named("java", self.processes())
            if len(found) != 1:
                raise LookupError(f"{self} has {len(found)} JVMs")
            [self._jvm] = found
        return self._jvm

    def processes(self) -> list[psutil.Process]:
        """All that were started here and live, also those whose parent is gone."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):  # gone meanwhile, or a kernel's
                if Path(process.cwd()) == self.folder and lives(process):
                    found.append(process)
        return found

    def pause(self) -> None:
        """Stops all of it, the JVM first: that is in the middle of something."""
        for process in self._jvm_first():
            with suppress(psutil.NoSuchProcess):  # one that a JVM starts lives for an instant
                stop(process)

    def resume(self) -> None:
        for process in self._jvm_first():
            with suppress(psutil.NoSuchProcess):  # it ended as soon as its parent went on
                process.resume()

    def kill(self) -> None:
        """The whole host, as by a power cut."""
        for process in self._jvm_first():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.reap()

    def kill_python(self) -> None:
        self.python().kill()
        self.reap()

    def kill_jvm(self) -> None:
        self.jvm().kill()

    def terminate(self) -> None:
        self.python().terminate()

    def reap(self) -> None:
        assert self._process is not None
        self._process.wait(GONE_TIMEOUT_S)

    def close(self) -> None:
        """Ends whatever is left, stopped or not."""
        if self._process is not None:
            self.kill()

    def progress(self) -> dict[str, Any]:
        """What the job tells of itself; nothing before it does."""
        try:
            text = (self.folder / "state" / "spark" / "progress.json").read_text()
        except FileNotFoundError:
            return {}
        found: dict[str, Any] = json.loads(text)
        return found

    def marks(self, table: str) -> Marks:
        checkpoint = self.folder / "checkpoints" / table
        noted = written.noted(checkpoint)  # before the plan, which is never behind it
        return Marks(written.planned(checkpoint), noted)

    @property
    def said(self) -> str:
        """The end of its last log, and what it told of its tables."""
        told = self.progress()
        tables = {each["name"]: (each["state"], each["reason"]) for each in told.get("tables", ())}
        log = self._errors.read_text()[-_WORDS:] if self._starts else ""
        return f"{self}: {told.get('state')} {told.get('reason', '')} {tables}\n{log}"

    @property
    def _errors(self) -> Path:
        return self.folder / f"stderr-{self._starts}"

    def _jvm_first(self) -> list[psutil.Process]:
        found = self.processes()
        jvms = named("java", found)
        return [*jvms, *(process for process in found if process not in jvms)]

    def __str__(self) -> str:
        return self.folder.name


def _renamed() -> bool:
    """Whether this machine lets a process have a host name of its own."""
    renamed = partial(namespaces.rename_host, "127.0.0.2")
    try:
        subprocess.run(["true"], preexec_fn=renamed, check=True)
    except subprocess.SubprocessError:
        return False
    return True


RENAMED = _renamed()
