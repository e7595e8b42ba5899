"""What the ledgers hold, read back: what was produced, what was handled, what was broken."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.support.lines import lines_after, whole_lines
from tests.support.recorded import BEGUN, ENDED

At = tuple[str, int]
"""A topic and a partition."""
Position = tuple[str, int, int]
"""Topic, partition, offset."""

STOPPED = "stopped"  # SIGSTOP, until SIGCONT


class Produced(NamedTuple):
    """One record whose fate the brokers told."""

    identity: str
    at: At
    offset: int
    key: str  # hexadecimal, "" is none
    acked_ns: int

    @property
    def position(self) -> Position:
        return (*self.at, self.offset)


@dataclass(slots=True)
class Invocation:
    """One run of a handler. `end_ns` is None when it was cut off."""

    pid: int
    at: At
    offset: int
    attempt: int
    key: str
    start_ns: int
    end_ns: int | None = None
    raised: bool = False

    @property
    def position(self) -> Position:
        return (*self.at, self.offset)

    @property
    def ended(self) -> bool:
        """It returned, so the record is done."""
        return self.end_ns is not None and not self.raised


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to a process, when, and what it hit."""

    what: str
    pid: int
    slot: int
    partitions: tuple[At, ...]
    from_ns: int
    to_ns: int
    in_hand: int


class FaultLedger:
    """The faults of one test, on disk as well, for whoever looks at a failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self.faults.append(fault)
        append(self._path, f"{fault}\n")


def append(path: Path, line: str) -> None:
    """One append that nothing can tear."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def invocations(folder: Path) -> list[Invocation]:
    """Every run of a handler so far, by the time it began."""
    found = [run for path in folder.glob("*.handler") for run in _of_file(path)]
    return sorted(found, key=lambda run: run.start_ns)


def of_process(folder: Path, pid: int) -> list[Invocation]:
    """The runs of one process so far."""
    return [run for path in folder.glob(f"{pid}-*.handler") for run in _of_file(path)]


def _of_file(path: Path) -> Iterator[Invocation]:
    """A process runs a record once at a time, so an end belongs to the last beginning."""
    pid = int(path.name.split("-")[0])
    open_runs: dict[tuple[str, str, str], Invocation] = {}
    for line in whole_lines(path):
        what, topic, partition, offset, attempt, key, at_ns = line.split("\t")
        place = (topic, partition, offset)
        if what == BEGUN:
            at = (topic, int(partition))
            run = Invocation(pid, at, int(offset), int(attempt), key, int(at_ns))
            open_runs[place] = run
            yield run
        else:
            run = open_runs.pop(place)
            run.end_ns = int(at_ns)
            run.raised = what != ENDED


def by_position(runs: Sequence[Invocation]) -> dict[Position, list[Invocation]]:
    """The runs of each record, in the order in which they began."""
    found: dict[Position, list[Invocation]] = defaultdict(list)
    for run in runs:
        found[run.position].append(run)
    return found


class Progress:
    """How far a service is, asked again and again: each question reads what is new, and only that.

    A whole ledger read ten times a second takes a core from the service that is watched.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._begun: set[tuple[str, ...]] = set()
        self._done: set[tuple[str, ...]] = set()

    def begun(self) -> int:
        """Records that were run at all."""
        self._read_on()
        return len(self._begun)

    def done(self) -> int:
        """Records whose handler has returned at least once."""
        self._read_on()
        return len(self._done)

    def _read_on(self) -> None:
        for path in self._folder.glob("*.handler"):
            new, self._read[path] = lines_after(path, self._read.get(path, 0))
            for what, *position in (line.split("\t")[:4] for line in new):
                if what == BEGUN:
                    self._begun.add(tuple(position))
                elif what == ENDED:
                    self._done.add(tuple(position))


def lines(folder: Path) -> int:
    """How many beginnings and ends there are, without reading what they are."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.handler"))


def now_ns() -> int:
    """The clock of every ledger; the broker's is the same, in milliseconds."""
    return time.time_ns()
