"""What `kworker health` says and exits with, whatever the supervisor answers."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kworker.cli.main import run
from tests.support.config_text import smallest
from tests.unit.console.documents import document, worker

NOBODY = "`kworker start` starts it"


class Answering:
    """A control socket that answers each request with one status document, or never."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.document: dict[str, Any] | None = document()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "control.sock"))
        self._listener.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(peer)
            if self.document is not None:
                peer.recv(4096)
                peer.sendall(json.dumps(self.document).encode() + b"\n")

    def close(self) -> None:
        """A thread that waits for a connection would take one more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._open):
            each.close()


class Prober:
    """Asks as a container's runtime does."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "kworker.toml"
        self.file.write_text(smallest())
        self._capsys = capsys
        self.errors = ""

    def asks(self, kind: str, *more: str) -> tuple[int, str]:
        code = run(["health", kind, *(more or ("--config", str(self.file)))])
        out, self.errors = self._capsys.readouterr()
        return code, out


@pytest.fixture
def prober(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Prober:
    return Prober(tmp_path, capsys)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Answering]:
    answering = Answering(tmp_path / "state")
    yield answering
    answering.close()


@pytest.mark.parametrize(
    ("changed", "live", "ready", "started"),
    [
        ({}, "", "", ""),
        ({"state": "paused"}, "", "", ""),
        ({"state": "red", "reasons": ["one", "two"]}, "", "one; two", ""),
        ({"state": "draining"}, "", "the service is draining", ""),
        (
            {"state": "waiting", "joined": False, "reasons": ["no broker answers"]},
            "",
            "no broker answers",
            "no broker answers",
        ),
        (
            {"workers": [worker(0), worker(1, phase="joining")]},
            "",
            "worker 1 has not joined its group (joining)",
            "",
        ),
    ],
)
def test_each_probe_judges_as_the_console_does(
    prober: Prober,
    supervisor: Answering,
    changed: dict[str, Any],
    live: str,
    ready: str,
    started: str,
) -> None:
    supervisor.document = document(**changed)
    for kind, state, problem in (
        ("live", "live", live),
        ("ready", "ready", ready),
        ("startup", "started", started),
    ):
        line = f"orders is not {state}: {problem}" if problem else f"orders is {state}"
        assert prober.asks(kind) == (int(bool(problem)), f"{line}\n")


def test_a_supervisor_that_is_silent_fails_every_probe(
    prober: Prober, supervisor: Answering, tmp_path: Path
) -> None:
    """Within the time that the prober waits, so that the line is shown."""
    supervisor.document = None
    for kind in ("live", "ready", "startup"):
        code, line = prober.asks(kind, "--state-dir", str(tmp_path / "state"), "--timeout", "50ms")
        assert (code, prober.errors) == (1, "")
        assert "the supervisor (pid None) does not answer" in line


def test_a_service_that_does_not_run_is_3(prober: Prober) -> None:
    assert prober.asks("live") == (3, "")
    assert prober.errors == f"kworker: orders is not running: {NOBODY}\n"


def test_a_broken_file_ends_no_service_that_is_asked_by_its_folder(
    prober: Prober, supervisor: Answering, tmp_path: Path
) -> None:
    """A prober would restart what runs well, into a file that does not load."""
    prober.file.write_text("name = ")
    assert prober.asks("live")[0] == 78
    assert prober.asks("live", "--state-dir", str(tmp_path / "state")) == (0, "orders is live\n")


def test_json_is_what_the_console_answers(
    prober: Prober, supervisor: Answering, tmp_path: Path
) -> None:
    supervisor.document = document(state="red", reasons=["bad"])
    asked = ("--json", "--state-dir", str(tmp_path / "state"))
    code, text = prober.asks("ready", *asked)
    assert (code, json.loads(text)) == (
        1,
        {"ok": False, "name": "orders", "state": "red", "reasons": ["bad"]},
    )
    supervisor.close()
    code, text = prober.asks("ready", *asked)
    assert code == 3
    assert json.loads(text)["ok"] is False


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--timeout", "0s"), "above 0"),
        (("--timeout", "soon"), "expected a duration"),
        (("--state-dir", "x", "--config", "y"), "exclude each other"),
    ],
)
def test_wrong_options_of_a_probe_are_named(
    prober: Prober, more: tuple[str, ...], words: str
) -> None:
    assert prober.asks("live", *more) == (2, "")
    assert words in prober.errors


def test_a_probe_imports_no_other_verb() -> None:
    """It runs every few seconds, beside the handlers."""
    said = (
        "import json, sys; from kworker.cli.main import run;"
        "run(['health', 'live', '--state-dir', '/nowhere']);"
        "print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    verbs = {name for name in loaded if name.startswith("kworker.cli.")}
    assert verbs == {f"kworker.cli.{name}" for name in ("main", "options", "verbs", "health")}
    assert not loaded & {"kworker.config", "structlog", "confluent_kafka", "starlette"}
