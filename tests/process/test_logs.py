"""`kworker logs` beside a real supervisor: a daemon's file, or whatever its standard error is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.bare_service import ROOT, Service, command, python
from tests.support.waiting import eventually


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


@contextmanager
def followed(folder: Path) -> Iterator[Path]:
    """What `kworker logs -f` has printed so far; it ends with Ctrl-C."""
    printed = folder / "printed"
    with printed.open("wb") as output:
        asked = command(folder, "logs", "-f", "-n", "1")
        follower = subprocess.Popen([sys.executable, *asked], cwd=ROOT, stdout=output)
    try:
        yield printed
        follower.send_signal(signal.SIGINT)
        assert follower.wait(10) == 130
    finally:
        follower.kill()
        follower.wait()


def test_a_daemons_log_is_followed_through_a_truncation(service: Service):
    started = python("-m", "tests.support.daemon_driver", service.folder, 20)
    assert started.returncode == 0, started.stderr
    daemon = psutil.Process(service.status()["pid"])
    shown = python(*command(service.folder, "logs"))
    assert shown.returncode == 0, shown.stderr
    assert "supervisor started" in events(shown.stdout)
    with followed(service.folder) as printed:
        eventually(lambda: "\n" in printed.read_text(), what="the last line")
        # Longer than all that follows, so that the file is shorter whenever it is looked at.
        filler = json.dumps({"event": "x" * 100_000}) + "\n"
        with (service.folder / "kworker.log").open("a") as log:
            log.write(filler)
        eventually(lambda: filler in printed.read_text(), what="the filler")
        os.truncate(service.folder / "kworker.log", 0)
        assert list(service.client.follow("stop"))[-1]["exit_code"] == 0
        daemon.wait(10)
        eventually(
            lambda: "draining: finishing records, then ending" in events(printed.read_text()),
            what="a line written after the truncation",
        )


def test_a_daemons_moved_log_is_begun_anew_and_followed(service: Service):
    """As logrotate moves it; whoever reads by name, reads all."""
    started = python("-m", "tests.support.daemon_driver", service.folder, 20)
    assert started.returncode == 0, started.stderr
    daemon = psutil.Process(service.status()["pid"])
    log = service.folder / "kworker.log"
    with followed(service.folder) as printed:
        eventually(lambda: "\n" in printed.read_text(), what="the last line")
        log.rename(service.folder / "moved")
        eventually(log.exists, what="a new file")
        assert list(service.client.follow("stop"))[-1]["exit_code"] == 0
        daemon.wait(10)
        assert "draining: finishing records, then ending" in events(log.read_text())
        eventually(lambda: "supervisor ends" in events(printed.read_text()), what="its last line")


def test_a_daemons_large_log_is_renamed(service: Service):
    service.write(settings={"log": {"rotate": "1KiB", "keep": 2}})
    started = python("-m", "tests.support.daemon_driver", service.folder, 20)
    assert started.returncode == 0, started.stderr
    daemon = psutil.Process(service.status()["pid"])
    log, older = service.folder / "kworker.log", service.folder / "kworker.log.1"
    with log.open("a") as file:
        file.write(json.dumps({"event": "x" * 1024}) + "\n")
    eventually(older.exists, what="the log is renamed")
    assert "supervisor started" in events(older.read_text())
    eventually(log.exists, what="a new file")
    assert list(service.client.follow("stop"))[-1]["exit_code"] == 0
    daemon.wait(10)


def test_a_service_in_the_foreground_is_read_where_it_writes(service: Service):
    """`kworker start 2> FILE`, or under nohup."""
    service.serve()
    service.says("supervisor started")
    shown = python(*command(service.folder, "logs", "--level", "info"))
    assert shown.returncode == 0, shown.stderr
    assert "supervisor started" in events(shown.stdout)


def test_a_service_that_writes_to_a_pipe_has_no_file(service: Service):
    driver = [sys.executable, "-m", "tests.support.supervisor_driver", str(service.folder)]
    with subprocess.Popen(driver, cwd=ROOT, stderr=subprocess.PIPE) as supervisor:
        eventually(lambda: service.status().get("state") == "running", what="it runs")
        refused = python(*command(service.folder, "logs"))
        assert refused.returncode == 1
        begins = f"kworker: orders (pid {supervisor.pid}) has no log file: its lines go to"
        assert refused.stderr.startswith(begins)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(20) == 0
