"""The units: what is printed is what is shipped, systemd accepts it, and its sandbox is close."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kworker import jars
from kworker.cli.main import run
from kworker.cli.units import UnitValues, service_unit, spark_unit, target_unit
from kworker.errors import ExitCode
from kworker.supervisor.limits import Limits
from tests.support.bare_service import ROOT
from tests.support.booted_systemd import PROGRAM, USER, BootedSystemd, boots
from tests.support.tables import spark_table
from tests.support.unit_service import UnitService
from tests.support.units import analyze, settings, write_instance

PRINTED = {
    "kworker@.service": service_unit(UnitValues(Path("/usr/local/bin/kworker"))),
    "kworker-spark@.service": spark_unit(UnitValues(Path("/usr/local/bin/kworker"))),
    "kworker.target": target_unit(),
}
RUN = [name for name in PRINTED if name.endswith(".service")]
EXPOSURE_MAX = 25  # tenths of systemd's own measure, which calls more than 50 medium, and 90 unsafe

Print = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Print:
    """Prints a unit, as the command does."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)

    def print_unit(*arguments: object) -> str:
        assert run(["systemd", "print", *map(str, arguments)]) == ExitCode.OK
        return capsys.readouterr().out

    return print_unit


def accepted(folder: Path, *files: Path) -> None:
    verdict = analyze("verify", "--recursive-errors=no", *files, folder=folder)
    assert verdict.returncode == 0, verdict.stderr
    assert "kworker" not in verdict.stderr


# -- templates ------------------------------------------------------------------------


def test_the_shipped_units_are_those_that_are_printed() -> None:
    """Two texts of one unit drift apart."""
    shipped = {file.name: file.read_text() for file in (ROOT / "systemd").iterdir()}
    assert shipped == PRINTED


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """Together, since they name each other. A template alone cannot be verified."""
    files = [write_instance(tmp_path, name, text) for name, text in PRINTED.items()]
    accepted(tmp_path, *files)


@pytest.mark.parametrize("name", RUN)
def test_systemd_finds_little_that_the_sandbox_leaves_open(name: str, tmp_path: Path) -> None:
    file = write_instance(tmp_path, name, PRINTED[name])
    verdict = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", file)
    assert verdict.returncode == 0, verdict.stdout


def test_the_command_prints_each_unit_for_this_installation(printed: Print) -> None:
    """Its own command and a user of one's choice, and else the template."""
    for name, shipped in PRINTED.items():
        text = printed(name, "--kworker", "/opt/k/bin/kworker", "--user", "svc")
        for line in set(text.splitlines()) - set(shipped.splitlines()):
            assert line.partition("=")[0] in ("ExecStart", "User", "ProtectHome"), line
        if name in RUN:
            assert settings(text)["ExecStart"][0].startswith("/opt/k/bin/kworker ")
            assert settings(text)["User"] == ["svc"]
    assert printed("--kworker", "/opt/k/bin/kworker", "--user", "svc") == printed(
        "kworker@.service", "--kworker", "/opt/k/bin/kworker", "--user", "svc"
    )


def test_an_interpreter_in_a_home_is_not_hidden(printed: Print) -> None:
    """A unit that hides its own command never starts."""
    text = printed("--kworker", "/home/ann/.venv/bin/kworker")
    assert settings(text)["ProtectHome"] == ["read-only"]
    text = service_unit(UnitValues(Path("/opt/k/bin/kworker"), reads=(Path("/opt/python"),)))
    assert settings(text)["ProtectHome"] == ["yes"]


def test_the_java_of_the_environment_is_that_of_the_unit(
    printed: Print, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd starts services with a PATH of its own."""
    monkeypatch.setenv("JAVA_HOME", "/home/ann/jdk 21")
    found = settings(printed("kworker-spark@.service"))
    assert found["Environment"][-1] == '"JAVA_HOME=/home/ann/jdk 21"'
    assert found["ProtectHome"] == ["read-only"]


# -- rules that follow kworker's own ---------------------------------------------------


def test_the_stop_of_the_unit_outlasts_that_of_the_service() -> None:
    """Else systemd kills a drain that would have ended in time."""
    limits = Limits()
    rest_s = limits.drain_margin_s + limits.left_grace_s + limits.left_term_s + limits.spark_stop_s
    for drain_s in (0.0, 30.0, 600.5):
        text = service_unit(UnitValues(Path("/kworker"), drain_s=drain_s))
        assert int(settings(text)["TimeoutStopSec"][0]) > drain_s + rest_s + 10


def test_the_units_follow_the_exit_codes() -> None:
    """No restart helps where a person must act, and nothing failed where nothing is lost."""
    no_use = {ExitCode.USAGE, ExitCode.CONFIG}
    expected = {RUN[0]: {*no_use, ExitCode.ALREADY_RUNNING}, RUN[1]: no_use}
    for name, codes in expected.items():
        told = settings(PRINTED[name])["RestartPreventExitStatus"][0]
        assert set(map(int, told.split())) == codes
    told = settings(PRINTED[RUN[0]])["SuccessExitStatus"][0]
    assert int(told) == ExitCode.DRAIN_TIMED_OUT


# -- the unit of one configuration -----------------------------------------------------


CONFIG = """
name = "orders"
handler = "handlers:notify"
{top}
[source]
topics = ["orders"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[workers]
drain_timeout = "2m"
[console]
listen = ""
"""
SPARK = '[spark]\ncheckpoints = "/srv/spark/c"\n' + "".join(
    spark_table(name, path=path)
    for name, path in (("a", "/srv/spark/a"), ("b", "tables/b"), ("c", "s3a://bucket/c"))
)


def write_config(folder: Path, top: str = "", spark: str = SPARK) -> Path:
    """A service with tables in two folders of this disk, and one in a store."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "kworker.toml"
    file.write_text(CONFIG.format(top=top) + spark)
    return file


def test_the_unit_of_a_configuration_fits_it(printed: Print, tmp_path: Path) -> None:
    """Its drain and its tables; the store of one table is not on this disk."""
    file = write_config(tmp_path / "orders")
    text = printed("--config", file)
    found = settings(text)
    assert found["TimeoutStopSec"] == ["180"]
    assert found["Environment"][0] == f"KWORKER_CONFIG={file}"
    assert found["StateDirectory"] == ["kworker/orders"]
    assert found["ReadWritePaths"] == ["/srv/spark", f"{file.parent}/tables"]
    assert "%i" not in text
    assert f"# Runs {file} as kworker@orders" in text
    accepted(tmp_path, write_instance(tmp_path, "kworker@.service", text))


def test_where_spark_runs_elsewhere_its_unit_alone_writes_tables(
    printed: Print, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KWORKER_SPARK__RUN", "elsewhere")
    file = write_config(tmp_path / "orders")
    assert "ReadWritePaths" not in settings(printed("--config", file))
    found = settings(printed("kworker-spark@.service", "--config", file))
    assert found["ReadWritePaths"] == ["/srv/spark", f"{file.parent}/tables"]


def test_a_state_folder_of_ones_own_can_be_written_to(printed: Print, tmp_path: Path) -> None:
    for state_dir, expected in (("/srv/state", ["/srv/state"]), ("/var/lib/kworker/orders", [])):
        file = write_config(tmp_path, f'state_dir = "{state_dir}"', spark="")
        assert settings(printed("--config", file))["ReadWritePaths"] == expected


def test_paths_with_blanks_and_percents_stay_whole(printed: Print, tmp_path: Path) -> None:
    """systemd splits lines at blanks, and replaces what follows a percent sign."""
    file = write_config(tmp_path / 'a "b" %i c')
    text = printed("--config", file, "--kworker", tmp_path / "bin %i" / "kworker")
    (tmp_path / "bin %i").mkdir()
    write_instance(tmp_path / "bin %i", "kworker@.service", "")
    folder = tmp_path / "units"
    folder.mkdir()
    (folder / "kworker@orders.service").write_text(text)
    accepted(folder, folder / "kworker@orders.service")
    assert r'a \"b\" %%i c/kworker.toml"' in settings(text)["Environment"][0]


def test_a_spark_unit_without_spark_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, spark="")
    code = run(["systemd", "print", "kworker-spark@.service", "--config", str(file)])
    assert code == ExitCode.CONFIG
    assert "kworker: spark: missing; give a [spark] table" in capsys.readouterr().err


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


@pytest.mark.skipif(not boots(), reason="needs a systemd of its own")
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


@pytest.mark.skipif(not boots(), reason="needs a systemd of its own")
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
