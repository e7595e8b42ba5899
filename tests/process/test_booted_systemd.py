"""The printed units under a real systemd: their sandbox, and the restarts that they ask for."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kworker import jars
from kworker.cli.units import UnitValues, service_unit
from tests.support.booted_systemd import PROGRAM, USER, BootedSystemd
from tests.support.unit_service import UnitService
from tests.support.units import write_config

# -- the sandbox ----------------------------------------------------------------------

FORBIDDEN = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)

def refused(call):
    try:
        return call() == -1
    except OSError:
        return True

assert refused(lambda: open("/etc/kworker-test", "w"))
assert refused(lambda: open("../outside", "w"))
assert refused(lambda: os.listdir("/proc/1/fd"))
assert refused(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
assert refused(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
assert refused(lambda: os.chown(".", 0, 0))
assert refused(lambda: libc.unshare(0x10000000))
assert refused(lambda: libc.mount(b"none", b"/mnt", b"tmpfs", 0, None))
assert refused(lambda: libc.ptrace(0, 0, 0, 0))
assert refused(lambda: open("/dev/kmsg"))
assert os.listdir("/tmp") == []
print("did all of it")
"""
ALLOWED = """
import mmap, multiprocessing, os, socket, subprocess, threading

if __name__ == "__main__":
    os.memfd_create("board")
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.nice(1)
    os.pidfd_open(os.getpid())
    open("/proc/self/oom_score_adj", "r+").write("500")
    socket.create_server(("127.0.0.1", 0)).close()
    socket.socket(socket.AF_UNIX).bind(f"\\0kworker-test-{os.getpid()}")
    assert socket.getaddrinfo("localhost", 80)
    subprocess.run(["true"], start_new_session=True, check=True)
    thread = threading.Thread(target=len, args=("",))
    thread.start()
    thread.join()
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
    for name in ("state", os.path.join(os.environ["KWORKER_CACHE"], "archive"), "/tmp/file"):
        open(name, "w").write("x")
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)  # as Java's
    print("did all of it")
"""


@pytest.mark.parametrize("program", [FORBIDDEN, ALLOWED], ids=["forbidden", "allowed"])
def test_the_sandbox_forbids_and_allows(program: str, tmp_path: Path) -> None:
    """What a service does for itself, and what a handler that was taken over would try."""
    folder = tmp_path / "readable"
    folder.mkdir()
    (folder / "program.py").write_text(program)
    unit = service_unit(UnitValues(PROGRAM, user=USER, reads=(Path(sys.base_prefix),)))
    script = f'#!/bin/sh\ncd "$STATE_DIRECTORY" && exec {sys.executable} /srv/test/program.py'
    systemd = BootedSystemd(
        {"kworker@.service": unit.replace("Type=notify", "Type=oneshot")},
        script,
        {"/srv/test": folder},
    )
    try:
        systemd.systemctl("start", "kworker@orders")
        assert systemd.said("kworker@orders.service").startswith("did all of it\n")
        assert systemd.show("kworker@orders", "Result") == "success"
    finally:
        systemd.close()


# -- a service ------------------------------------------------------------------------


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[UnitService]:
    """A service that waits for its brokers, and so has no workers."""
    for name in ("service", "tables", "secret"):
        (tmp_path / name).mkdir()
    write_config(tmp_path / "service", spark="")
    (tmp_path / "service" / "handlers.py").write_text("def notify(message): pass\n")
    (tmp_path / "secret" / "token").touch()
    jars.cache_folder().mkdir(parents=True, exist_ok=True)
    made = UnitService("orders", *(tmp_path / name for name in ("service", "tables", "secret")))
    yield made
    made.systemd.close()


def test_systemd_restarts_what_was_killed_and_no_mistake(
    waiting: UnitService, tmp_path: Path
) -> None:
    """The one needs a new process, the other a person."""
    waiting.do("start", "kworker.target")
    waiting.do("start", "--no-block", waiting.name)
    waiting.until(lambda: waiting.status().get("state") == "starting", "the supervisor answers")
    waiting.kill_supervisor()
    waiting.until(lambda: waiting.show("NRestarts") == "1", "systemd has started it again")
    waiting.says("waiting: kafka")
    assert waiting.status()["state"] == "waiting"

    waiting.do("stop", "kworker.target")
    assert (waiting.show("ActiveState"), waiting.show("Result")) == ("inactive", "success")
    assert waiting.show("ExecMainStatus") == "0"

    write_config(tmp_path / "service", "mistake = 1", spark="")
    assert waiting.systemd.systemctl("start", waiting.name).returncode != 0
    assert (waiting.show("ExecMainStatus"), waiting.show("SubState")) == ("78", "failed")
    assert "mistake: unknown key" in waiting.said()
