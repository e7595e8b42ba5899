"""Runs a program under a memory limit that the kernel enforces, and reports its memory."""

import os
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Protocol

CGROUP_V1 = Path("/sys/fs/cgroup/memory")
CGROUP_V2 = Path("/sys/fs/cgroup")
EMPTY_S = 10.0
STOP_S = 45.0
STACK_BYTES = 1 << 20


class Limit(Protocol):
    """A memory limit, in bytes, for a process and its children."""

    name: str
    environment: ClassVar[dict[str, str]]

    def enter(self) -> None:
        """Called in the child, before it becomes the program."""

    def peak_bytes(self) -> int | None:
        """The peak memory in bytes; None if the kernel does not report it."""

    def remove(self) -> None:
        """Removes the limit. Called when the program has ended."""


class Cgroup:
    """A memory cgroup, of version 1 or 2."""

    environment: ClassVar[dict[str, str]] = {}

    def __init__(self, root: Path, limit_bytes: int) -> None:
        old = root == CGROUP_V1
        self.name = f"cgroup v{1 if old else 2}"
        self._folder = root / f"kworker-bench-{os.getpid()}-{time.monotonic_ns()}"
        self._folder.mkdir()
        self._peak = self._folder / ("memory.max_usage_in_bytes" if old else "memory.peak")
        limit = self._folder / ("memory.limit_in_bytes" if old else "memory.max")
        try:
            limit.write_text(str(limit_bytes))
        except OSError:
            self._folder.rmdir()
            raise

    def enter(self) -> None:
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self) -> int | None:
        return int(self._peak.read_text()) if self._peak.exists() else None

    def remove(self) -> None:
        deadline = time.monotonic() + EMPTY_S
        while (self._folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._folder.rmdir()


class Ulimit:
    """`ulimit -v` of each single process, for machines without permission for cgroups."""

    name = "ulimit -v"
    # Each further arena reserves 64 MiB of address space, used or not.
    environment: ClassVar[dict[str, str]] = {"MALLOC_ARENA_MAX": "1"}

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes

    def enter(self) -> None:
        # Address space counts whole stacks, which threads hardly touch.
        resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
        resource.setrlimit(resource.RLIMIT_AS, (self._limit_bytes, self._limit_bytes))

    def peak_bytes(self) -> int | None:
        return None

    def remove(self) -> None:
        pass


def limit(limit_bytes: int) -> Limit:
    """The strictest limit that this machine allows: a cgroup, else ulimit."""
    for root in (CGROUP_V1, CGROUP_V2):
        if (root / "cgroup.procs").exists():
            try:
                return Cgroup(root, limit_bytes)
            except OSError:
                continue  # no permission, or no memory controller
    return Ulimit(limit_bytes)


class Confined:
    """A program under a limit."""

    def __init__(self, process: subprocess.Popen[bytes], held: Limit) -> None:
        self.process = process
        self._held = held

    @property
    def limited_by(self) -> str:
        return self._held.name

    def peak_bytes(self) -> int | None:
        """The peak memory in bytes of the program and its children so far."""
        return self._held.peak_bytes()


@contextmanager
def confined(
    command: Sequence[str | Path], limit_bytes: int, environment: Mapping[str, str], log: Path
) -> Iterator[Confined]:
    """Starts `command`, and stops it at the end of the block. Its output goes to `log`."""
    held = limit(limit_bytes)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **held.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=held.enter,
        )
    try:
        yield Confined(process, held)
    finally:
        _stop(process)
        held.remove()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
