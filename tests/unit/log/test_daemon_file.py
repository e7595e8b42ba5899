"""The daemon's log file: it is followed by its name, and renamed when it is large."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kworker.config.model import LogSettings
from kworker.log.daemon_file import VARIABLE, DaemonFile, RotatedFile, open_as_output

SMALL = LogSettings(rotate="8B", keep=2)  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path.resolve() / "state" / "kworker.log"
    path.parent.mkdir()
    monkeypatch.setenv(VARIABLE, str(path))
    return path


@contextmanager
def output_in(path: Path) -> Iterator[None]:
    """Makes a file the output of this process for a while. Not a fixture: pytest takes it back."""
    saved = os.dup(1), os.dup(2)
    open_as_output(path)
    try:
        yield
    finally:
        for fd, before in zip((1, 2), saved, strict=True):
            os.dup2(before, fd)
            os.close(before)


def write(text: str, fd: int = 2) -> None:
    os.write(fd, text.encode())


def test_a_moved_file_is_followed_by_its_name(log: Path) -> None:
    """As logrotate moves it; the process writes to both files, and loses no line."""
    with output_in(log):
        file = DaemonFile()
        file.turn(0.0)
        moved = log.rename(log.with_name("moved"))
        write("before\n")
        file.turn(0.5)  # it has looked just now
        write("late\n")
        file.turn(1.0)
        write("after\n")
        write("output\n", fd=1)
    assert moved.read_text() == "before\nlate\n"
    assert log.read_text() == "after\noutput\n"


def test_a_file_that_another_program_made_is_appended_to(log: Path) -> None:
    """logrotate's `create` makes the file before any process looks."""
    with output_in(log):
        file = DaemonFile()
        log.rename(log.with_name("moved"))
        log.write_text("made\n")
        file.turn(0.0)
        write("after\n")
    assert log.read_text() == "made\nafter\n"


def test_output_that_goes_elsewhere_is_left_alone(log: Path, tmp_path: Path) -> None:
    """A service that a handler starts has the variable, and a terminal or file of its own."""
    other = tmp_path / "other"
    log.touch()
    with output_in(other):
        file = DaemonFile()
        file.turn(0.0)
        write("mine\n")
    assert other.read_text() == "mine\n"
    assert log.read_text() == ""


def test_a_large_file_is_renamed_and_two_older_ones_are_kept(log: Path) -> None:
    with output_in(log):
        file = RotatedFile()
        for turn in range(5):
            write(f"line {turn}\n" * 2)
            file.turn(float(turn), SMALL)
        write("now\n")
    assert {path.name: path.read_text() for path in log.parent.iterdir()} == {
        "kworker.log": "now\n",
        "kworker.log.1": "line 4\n" * 2,
        "kworker.log.2": "line 3\n" * 2,
    }


@pytest.mark.parametrize("rotate", ["1KiB", "0B"])
def test_a_small_file_or_one_without_a_limit_stays(log: Path, rotate: str) -> None:
    with output_in(log):
        write("line\n")
        RotatedFile().turn(0.0, LogSettings(rotate=rotate))  # type: ignore[arg-type]
    assert [path.name for path in log.parent.iterdir()] == ["kworker.log"]


def test_the_supervisor_follows_a_moved_file_too(log: Path) -> None:
    with output_in(log):
        file = RotatedFile()
        log.rename(log.with_name("moved"))
        file.turn(0.0, SMALL)
        write("after\n")
    assert log.read_text() == "after\n"


def test_a_folder_that_is_gone_changes_nothing(log: Path) -> None:
    with output_in(log):
        file = RotatedFile()
        moved = log.parent.rename(log.parent.with_name("elsewhere"))
        file.turn(0.0, SMALL)
        write("line\n")
    assert (moved / "kworker.log").read_text() == "line\n"


def test_without_a_daemon_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert DaemonFile().path is None
