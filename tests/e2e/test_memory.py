"""Bounded memory: slow handlers, a backlog of a gigabyte, and a limit that the kernel enforces."""

import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.confined import confined, limit
from tests.support.kafka import New, Writer
from tests.support.service import ROOT, Service, lasting, service
from tests.support.waiting import eventually

Topic = Callable[..., str]

RECORDS, RECORD_BYTES = 100_000, 10_000
WATCHED_S = 15.0
RATE = 320  # records a second: sixteen threads at 50 ms
FULL = 1_400  # records of that size in `in_flight_bytes`, about
SUPERVISOR_BYTES = 64 << 20  # which is under the same limit
OOM_TIMEOUT_S = 60.0
SETTINGS = {"workers": {"processes": 1, "in_flight": 20_000, "in_flight_bytes": "16MiB"}}
SLOW = lasting(0.05)


@pytest.fixture(scope="module")
def backlog(bootstrap: str, topic: Topic, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A topic with 100,000 records of 10 KB, which compress well: in memory they are a gigabyte."""
    source = topic("backlog", partitions=8)
    Writer(bootstrap, tmp_path_factory.mktemp("backlog") / "produced").write(source, _large())
    return source


def _large() -> Iterator[New]:
    for number in range(RECORDS):
        order = json.dumps({"order_id": number, "customer": "", "photo": "." * RECORD_BYTES})
        yield New(str(number), order.encode(), b"%d" % number)


@pytest.fixture(scope="module")
def ceiling(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> int:
    """What `check` says that a worker takes at most."""
    asked = Service(tmp_path_factory.mktemp("ceiling"), bootstrap, ["any"], settings=SETTINGS)
    return int(json.loads(asked.command("check", "--json").stdout)["memory_ceiling_bytes"])


def test_a_worker_stays_below_its_ceiling_under_a_real_limit(
    tmp_path: Path, bootstrap: str, backlog: str, ceiling: int
) -> None:
    """It takes what it may and goes on at the pace of its handlers, whatever the backlog."""
    held = limit(ceiling + SUPERVISOR_BYTES)
    with service(
        tmp_path / "service", bootstrap, [backlog], handlers=SLOW, settings=SETTINGS
    ) as bounded:
        bounded.serve(enter=held.enter)
        pid = bounded.worker(0)["pid"]
        _works_while_full(bounded)
        row = bounded.worker(0)
        assert (row["pid"], row["restarts"], bounded.state()) == (pid, 0, "running")
        assert _peak_bytes(pid) < ceiling
        bounded.ends_well()
    held.remove()


def test_a_naive_consumer_is_killed_under_the_same_memory_limit(
    tmp_path: Path, bootstrap: str, backlog: str, ceiling: int
) -> None:
    """The control: the limit is real, and the backlog is large enough to break it."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        _killed(tmp_path, bootstrap, backlog, ceiling, silent.getsockname()[1])


def _killed(folder: Path, bootstrap: str, backlog: str, ceiling: int, port: int) -> None:
    """The consumer of the example, which calls a service that never answers."""
    unbounded = ROOT / "examples" / "backpressure" / "unbounded.py"
    command = [sys.executable, unbounded, "--servers", bootstrap, "--topic", backlog]
    command += ["--messages", str(RECORDS)]
    log = folder / "unbounded.log"
    service = {"BILLING_URL": f"http://127.0.0.1:{port}"}
    with confined(command, ceiling + SUPERVISOR_BYTES, service, log) as program:
        code = program.process.wait(OOM_TIMEOUT_S)
        by_cgroup = program.limited_by.startswith("cgroup")
    if by_cgroup:
        assert code == -signal.SIGKILL
    else:
        assert code != 0
        assert "MemoryError" in log.read_text()


def _works_while_full(bounded: Service) -> None:
    """Until it has held all that it may for some time, and has not stopped working."""
    eventually(lambda: bounded.worker(0)["in_flight"] >= FULL, what="it holds what it may")
    until, before = time.monotonic() + WATCHED_S, bounded.counter("done")

    def watched() -> bool:
        # It takes again at half, and what it asks for then may come a second later.
        assert bounded.worker(0)["in_flight"] >= FULL / 2 - 1.25 * RATE
        return time.monotonic() > until

    eventually(watched, timeout_s=2 * WATCHED_S, every_s=0.25)
    assert bounded.counter("done") - before > 100 * WATCHED_S


def _peak_bytes(pid: int) -> int:
    """The most that was ever resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10
