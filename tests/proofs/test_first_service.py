"""README's "A first service", typed as it stands in an empty folder, ends with a row on the screen.

Its ports are the defaults, as a reader's would be: so no other sandbox may run on this machine.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import ROOT
from tests.support.tables import Reader
from tests.support.waiting import eventually

README = (ROOT / "README.md").read_text()
LIMIT_S = 300.0
GREETING = "hello, world"


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


class Terminal:
    """A shell in the folder of the service, with the installed environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def types(self, line: str, timeout_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._shell(line),
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def begins(self, line: str, output: Path) -> "subprocess.Popen[bytes]":
        with output.open("wb") as file:
            return subprocess.Popen(
                self._shell(f"exec {line}"),
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def shows(self, line: str, text: str) -> None:
        """Types a line until its output has the text, as a person would once more."""

        def shown() -> bool:
            done = self.types(line)
            return done.returncode == 0 and text in done.stdout

        eventually(shown, timeout_s=LIMIT_S, every_s=1.0, what=f"{line} shows {text!r}")

    @staticmethod
    def _shell(line: str) -> list[str]:
        return ["bash", "-c", f". {ROOT}/.venv/bin/activate && {line}"]

    @staticmethod
    def _environment() -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path)
    yield found
    found.folder = tmp_path / "hello"
    if found.folder.exists():
        found.types("kworker sandbox down --wipe")


def test_a_first_service_ends_with_a_row(terminal: Terminal, tables: Reader) -> None:
    first, second = blocks(section("A first service"), "sh")
    install, enter, *prepare, start = lines(first)
    assert install.startswith("make install")
    assert enter == "mkdir hello && cd hello"
    assert (ROOT / ".venv/bin/activate").exists(), "make install has not run"
    assert terminal.types("mkdir hello").returncode == 0
    terminal.folder /= "hello"
    for line in prepare:
        done = terminal.types(line)
        assert done.returncode == 0, f"{line}:\n{done.stdout}{done.stderr}"
    service = terminal.begins(start, terminal.folder / "said")
    try:
        use(terminal, lines(second))
        read_as_the_readme_says(terminal, tables)
    finally:
        service.send_signal(signal.SIGINT)
    assert service.wait(60) == 0, (terminal.folder / "said").read_text()[-3_000:]


def lines(block: str) -> list[str]:
    """What is typed: without comments, and what only goes on from the line before."""
    typed = (re.sub(r"(^| {2,})#.*", "", line).strip() for line in block.splitlines())
    return [line for line in typed if line]


def use(terminal: Terminal, second: list[str]) -> None:
    send, tail, try_one, install, row = second
    sent = terminal.types(send)
    assert sent.returncode == 0, sent.stderr
    terminal.shows(tail, GREETING)
    place = re.search(r"greetings:\d+:\d+", sent.stdout)
    assert place
    terminal.shows(re.sub(r"greetings:\d+:\d+", place[0], try_one), GREETING)
    assert terminal.types(install).returncode == 0
    terminal.shows(row, GREETING)


def read_as_the_readme_says(terminal: Terminal, tables: Reader) -> None:
    """Each way of reading a table that it names."""
    python, spark = (
        next(block for block in blocks(section("The tables"), "python") if word in block)
        for word in ("duckdb", "spark.read")
    )
    script = terminal.folder / "read.py"
    script.write_text(python)
    done = terminal.types("python read.py")
    assert done.returncode == 0, done.stderr
    assert GREETING in done.stdout
    assert re.search(r"greetings\s*\W+\s*1\b", done.stdout), done.stdout
    assert spark.count("\n") == 1
    path = terminal.folder / "data/greetings"
    assert GREETING in tables.shows(spark.replace("data/greetings", str(path)))
