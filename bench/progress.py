"""What a run has measured so far, in a file, so that an interrupted run can go on."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bench.disturbance import LOOP_TIMES, REPEATS
from bench.place import ROOT

_Part = TypeVar("_Part")
KEPT = ("rates", "memory", "stolen", "versions", "seconds", "absent_rows", "loop_us", "repeats")
DIRTY = "-dirty"  # the end of a commit's name, if the tree has changes


class Progress:
    """Figures by name, written to a file as they come; without a file, kept for this run only."""

    def __init__(self, file: Path | None, size: dict[str, Any]) -> None:
        """Continues with what `file` has.

        Ends the program if that was another commit or size, if it is of an older benchmark, or if
        the tree has changes: nobody knows then whether they are those of the file's figures.
        What was left out is tried again: it is in the file for a reader.
        """
        self._file = file
        self.commit = _commit()
        # As the file will have it: lists, and no tuples.
        self._of = json.loads(json.dumps({"commit": self.commit, "size": size}))
        self.rates: dict[str, list[float]] = {}  # of each contender, one for each round
        self.memory: dict[str, list[int]] = {}  # peak bytes of each contender, one for each round
        self.stolen: dict[str, list[float]] = {}  # share of the CPU, of each contender and round
        self.versions: dict[str, str] = {}  # by rival or package
        self.seconds: dict[str, float] = {}  # that each contender or part has taken, all in all
        self.absent: dict[str, str] = {}  # rivals or contenders left out, and why
        self.absent_rows: dict[str, str] = {}  # of parts, which are not tried again
        self._parts: dict[str, Any] = {}
        if file and file.exists():
            self._load(json.loads(file.read_text()), file)

    @property
    def loop_us(self) -> dict[str, Any]:
        """The times of a loop that never changes: see `bench.disturbance`."""
        return LOOP_TIMES.saved()

    @loop_us.setter
    def loop_us(self, saved: dict[str, Any]) -> None:
        LOOP_TIMES.load(saved)

    @property
    def repeats(self) -> dict[str, Any]:
        """What measuring again has cost: see `bench.disturbance`."""
        return REPEATS.saved()

    @repeats.setter
    def repeats(self, saved: dict[str, Any]) -> None:
        REPEATS.load(saved)

    def part(self, name: str, measure: Callable[[], _Part]) -> _Part:
        """Returns the figures of a part of the benchmark, measured once."""
        if name not in self._parts:
            with self.timed(name):
                self._parts[name] = measure()
        part: _Part = self._parts[name]
        return part

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the duration of the block to the seconds of `name`, and saves everything."""
        began = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - began
            self.seconds[name] = round(self.seconds.get(name, 0.0) + spent, 1)
            self.save()

    def save(self) -> None:
        """Writes everything to the file."""
        if self._file:
            figures = {name: getattr(self, name) for name in KEPT}
            kept = {**self._of, **figures, "absent": self.absent, "parts": self._parts}
            text = json.dumps(kept, indent=1)
            beside = self._file.with_name(f"{self._file.name}.new")
            beside.write_text(text)
            beside.replace(self._file)

    def _load(self, found: dict[str, Any], file: Path) -> None:
        if self.commit.endswith(DIRTY):
            raise SystemExit(
                f"{file} cannot be gone on with, since the tree has changes: commit them, or give"
                " another file"
            )
        for what, now in self._of.items():
            if found.get(what) != now:
                raise SystemExit(
                    f"{file} has figures of {what} {found.get(what)}, and this is {now}:"
                    " go on there, or give another file"
                )
        if missing := {*KEPT, "parts"} - found.keys():
            raise SystemExit(
                f"{file} is of an older benchmark, without {', '.join(sorted(missing))}: give"
                " another file"
            )
        for name in KEPT:
            setattr(self, name, found[name])
        self._parts = found["parts"]
        count = sum(map(len, self.rates.values())) + len(self._parts)
        print(f"going on with {count} measurements of {file}")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    described = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return described.stdout.strip()
