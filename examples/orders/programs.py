"""Runs the programs of the scene: shows their output, indented, and fails when they fail."""

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

PYTHON = Path(sys.executable)
KWORKER = PYTHON.with_name("kworker")


class Failed(Exception):
    """A program failed; the message names it, and its output is above."""


class Programs:
    """Runs programs in one folder and one environment."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = {**os.environ, **environment}

    def run(self, *command: str | Path, accept: Sequence[int] = (0,)) -> None:
        """Runs a program and shows every line it writes. Raises Failed for another exit code."""
        with subprocess.Popen(
            [str(part) for part in command],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as program:
            for line in program.stdout or ():
                print("      " + line.rstrip(), flush=True)
        if program.returncode not in accept:
            raise Failed(f"`{_spoken(command)}` ended with exit code {program.returncode}")

    def output(self, *command: str | Path, well: Collection[int] = (0,)) -> str:
        """Runs a program and returns its stdout; its stderr is shown if it fails.

        `well` are the exit codes that mean success.
        """
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in well:
            print(done.stderr, file=sys.stderr, flush=True)
            raise Failed(f"`{_spoken(command)}` ended with exit code {done.returncode}")
        return done.stdout

    def start(self, *command: str | Path) -> tuple[subprocess.Popen[str], str]:
        """Starts a server; returns it with its first line, which it writes when it serves."""
        program = subprocess.Popen(
            [str(part) for part in command],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdout
        first = program.stdout.readline().strip()
        if not first:
            raise Failed(f"`{_spoken(command)}` does not start")
        return program, first


def _spoken(command: Sequence[str | Path]) -> str:
    """The command as a user would type it."""
    return " ".join(Path(part).name if "/" in str(part) else str(part) for part in command)
