"""`kworker logs`: the end of a log file, as it is and on a terminal, and where there is none."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kworker import log
from kworker.cli.logs import log_tail
from kworker.cli.logs.lines import LogLine, shown, why_it_ended
from kworker.cli.logs.log_tail import LogTail
from kworker.cli.main import run
from kworker.instance.state_folder import StateFolder
from tests.support.config_text import smallest


def line(event: str, level: str = "info", **fields: Any) -> str:
    return json.dumps(
        {"timestamp": "2026-11-25T18:15:15Z", "level": level, "event": event} | fields
    )


def every(_line: bytes) -> bool:
    return True


# -- the file -------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "kworker.log"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
    return path


@pytest.fixture
def tail(path: Path) -> Iterator[LogTail]:
    with closing(LogTail(path)) as tail:
        yield tail


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 16])
def test_the_last_lines_are_found_from_the_end(
    path: Path, tail: LogTail, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """However the blocks fall, and however few of the lines are wanted."""
    monkeypatch.setattr(log_tail, "_BLOCK_BYTES", block)
    assert tail.last(3, every) == [b"997", b"998", b"999"]
    assert tail.last(0, every) == []
    assert tail.last(2, lambda line: line.endswith(b"00")) == [b"800", b"900"]
    assert len(tail.last(5000, every)) == 1000
    assert tail.unfinished == b""
    add(path, b"half")
    assert tail.last(1, every) == [b"999"]
    assert tail.unfinished == b"half"


@pytest.mark.parametrize("content", [b"", b"\n", b"one", b"one\n", b"\n\none\n"])
def test_a_file_of_few_lines_is_shown_whole(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with closing(LogTail(path)) as tail:
        assert tail.last(9, every) == content.split(b"\n")[:-1]
        assert tail.unfinished == content.split(b"\n")[-1]


def test_a_line_is_shown_once_it_is_whole(path: Path, tail: LogTail) -> None:
    """A long one is written in parts."""
    tail.last(1, every)
    assert tail.added() == []
    add(path, b"one\ntw")
    assert tail.added() == [b"one"]
    assert tail.added() == []
    add(path, b"o\n")
    assert (tail.added(), tail.added()) == ([b"two"], [])


def test_a_rotated_file_is_read_to_its_end_and_then_the_next(path: Path, tail: LogTail) -> None:
    """Also while there is no file of that name."""
    tail.last(1, every)
    path.rename(path.with_suffix(".1"))
    add(path.with_suffix(".1"), b"old\nunfinished")
    assert tail.added() == [b"old"]
    assert tail.added() == []
    path.write_bytes(b"new\n")
    assert tail.added() == [b"unfinished", b"new"]
    add(path, b"newer\n")
    assert tail.added() == [b"newer"]


def test_late_lines_of_a_rotated_file_are_shown_too(path: Path, tail: LogTail) -> None:
    """A process looks once a second for the name, and writes to the old file until then."""
    tail.last(1, every)
    renamed = path.rename(path.with_suffix(".1"))
    path.write_bytes(b"new\n")
    assert tail.added() == [b"new"]
    add(renamed, b"late\n")
    add(path, b"newer\n")
    assert tail.added() == [b"late", b"newer"]


def test_a_truncated_file_is_read_from_its_beginning(path: Path, tail: LogTail) -> None:
    """As after `copytruncate`."""
    tail.last(1, every)
    add(path, b"unfinished")
    assert tail.added() == []
    os.truncate(path, 0)
    assert tail.added() == []
    add(path, b"new\n")
    assert tail.added() == [b"new"]


def test_a_line_without_end_takes_no_memory_without_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(log_tail, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(log_tail, "_READ_BYTES", 64)
    path.write_bytes(b"x" * 1000)
    with closing(LogTail(path)) as tail:
        found = tail.last(99, every)
        assert len(found) > 5
        add(path, b"y" * 1000)
        found += [line for _ in range(30) for line in tail.added()]
        assert len(found) > 10
        assert max(map(len, [*found, tail.unfinished])) < 200


# -- a line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (line("it runs"), "info"),
        (line("it failed", "error"), "error"),
        ("2026-11-25T18:15:15Z [warning  ] it waits    pid=1", "warning"),
        ('{"event": "not ours"}', ""),
        ('{"event": 1, "level": "info", "timestamp": "t"}', ""),
        ("{", ""),
        ("[1]", ""),
        ("Fatal Python error: Segmentation fault", ""),
        ("", ""),
    ],
)
def test_a_level_is_known_of_kworkers_own_lines(text: str, level: str) -> None:
    parsed = LogLine.parse(text.encode())
    assert (parsed.text, parsed.level) == (text, level)
    assert parsed.has("debug") is bool(level)
    assert parsed.has("error") is (level == "error")


def test_other_programs_output_is_an_event_in_json() -> None:
    assert json.loads(shown(LogLine.parse(b"Segmentation \xff"), "json")) == {
        "event": "Segmentation �"
    }
    ours = line("it runs", slot=1)
    assert shown(LogLine.parse(ours.encode()), "json") == ours


def test_a_failed_start_shows_what_is_wrong_readably() -> None:
    """Of a daemon, whose log may be JSON and mostly about other things."""
    problem = line("the port is taken", "error", at=8321)
    lines = [line("supervisor started"), problem, "kworker: no file", line("supervisor ends")]
    first, second = why_it_ended(lines)
    assert "the port is taken" in first
    assert "{" not in first
    assert second == "kworker: no file"


def test_a_failed_start_without_errors_shows_its_last_lines() -> None:
    [shown_] = why_it_ended([line("supervisor started")])
    assert "supervisor started" in shown_


@pytest.mark.parametrize("text", [line("red", error="\x1b[31mred\x07", of=["\x1b[0m"]), "\x1b[31m"])
def test_a_terminal_gets_no_control_characters_of_strangers(text: str) -> None:
    """Handlers print what records hold."""
    on_terminal = shown(LogLine.parse(text.encode()), "terminal")
    assert "\x1b[31m" not in on_terminal.replace("\x1b[31m\x1b[1m", "")
    assert "\x07" not in on_terminal


def raised() -> Any:
    frame = {"filename": "handlers.py", "lineno": 7, "name": "notify"}
    cause = {"exc_type": "KeyError", "exc_value": "'total'", "frames": [frame], "is_cause": True}
    last = {"exc_type": "Retry", "exc_value": "busy", "frames": [frame], "is_cause": False}
    return [{**last, "exc_notes": ["of order 7"]}, {**cause, "exc_notes": []}]


def test_a_traceback_reads_as_pythons_own() -> None:
    fields = {"timestamp": "t", "level": "error", "event": "failed", "exception": raised()}
    first, *rest = log.console_line(fields, colors=False).splitlines()
    assert first.startswith("t [error    ] failed")
    assert rest == [
        "Traceback (most recent call last):",
        '  File "handlers.py", line 7, in notify',
        "KeyError: 'total'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "handlers.py", line 7, in notify',
        "Retry: busy",
        "of order 7",
    ]


@pytest.mark.parametrize("exception", ["text", 7, [], [{}], [7], {"a": 1}, [{"frames": 1}], None])
def test_an_exception_of_another_form_is_shown_as_it_is(exception: Any) -> None:
    fields = {"timestamp": "t", "level": "error", "event": "failed", "exception": exception}
    odd = {"exc_info": True, "stack": 7}
    assert str(exception) in log.console_line(fields | odd, colors=False)


# -- the verb -------------------------------------------------------------------------


class LogDesk:
    """A service that does not run, and a person who asks for its log."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "kworker.toml"
        self.file.write_text(smallest())
        self.folder = StateFolder(folder / "state")
        self.folder.make()
        self._capsys = capsys
        self.errors = ""

    def types(self, *arguments: str) -> tuple[int, list[str]]:
        code = run(["logs", *arguments, "--config", str(self.file)])
        out, self.errors = self._capsys.readouterr()
        return code, out.splitlines()


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> LogDesk:
    return LogDesk(tmp_path, capsys)


def test_the_end_of_the_daemons_file_is_printed(desk: LogDesk) -> None:
    lines = [
        line(f"event {number}", "error" if number % 30 == 0 else "info") for number in range(99)
    ]
    desk.folder.log.write_text("\n".join([*lines, "Segmentation fault"]))
    assert desk.types() == (0, [*lines[-50:], "Segmentation fault"])
    assert desk.types("-n", "2") == (0, [*lines[-2:], "Segmentation fault"])
    assert desk.types("-n", "2", "--level", "error") == (0, [lines[60], lines[90]])
    _, found = desk.types("--json", "-n", "1")
    assert [json.loads(each)["event"] for each in found] == ["event 98", "Segmentation fault"]


def test_without_a_file_the_places_are_named(desk: LogDesk) -> None:
    code, found = desk.types()
    assert (code, found) == (1, [])
    [said] = desk.errors.splitlines()
    assert f"only `kworker start --daemon` writes one ({desk.folder.log})." in said
    assert "journalctl -u kworker@kworker" in said


def test_a_wrong_level_is_told_with_the_right_ones(desk: LogDesk) -> None:
    assert desk.types("--level", "warn")[0] == 2
    assert "debug" in desk.errors


# Passes for a supervisor, until it is told to end.
LOCKED = """
import sys
from pathlib import Path
from kworker.instance.state_folder import StateFolder
from tests.support.config_text import smallest
lock = StateFolder(Path(sys.argv[1])).lock()
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(folder: StateFolder, stderr: Any) -> Iterator[int]:
    command = [sys.executable, "-c", LOCKED, str(folder.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr) as child:
        assert child.stdout
        assert child.stdout.readline() == b"locked\n"
        yield child.pid


def test_a_service_that_logs_elsewhere_does_not_show_an_old_file(
    desk: LogDesk, tmp_path: Path
) -> None:
    """Of the time when it was a daemon."""
    desk.folder.log.write_text(line("old") + "\n")
    with (tmp_path / "other.log").open("w") as other:
        other.write(line("new") + "\n")
        other.flush()
        with running(desk.folder, other):
            assert desk.types() == (0, [line("new")])
    with running(desk.folder, subprocess.PIPE) as pid:
        assert desk.types() == (1, [])
        assert f"orders (pid {pid}) has no log file: its lines go to the program" in desk.errors
    with running(desk.folder, subprocess.DEVNULL):
        assert desk.types() == (1, [])
        assert "its lines go to /dev/null" in desk.errors
    assert desk.types() == (0, [line("old")])
