"""The printed units under a real systemd: a service and its Spark job, in their sandboxes."""

import os
import pwd
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from kworker import jars
from kworker.core import headers as names
from tests.support.booted_systemd import USER
from tests.support.console import ConsoleClient
from tests.support.kafka import New, Writer, messages
from tests.support.service import Service, service
from tests.support.unit_service import UnitService

# What handlers do beside computing; and two that the isolated process and the sandbox contain.
HANDLERS = """
import multiprocessing, os, signal, subprocess
from pathlib import Path

def handle(message):
    match message.text():
        case "program":
            subprocess.run(["true"], check=True, start_new_session=True)
        case "pool":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(abs, [-1]) == [1]
        case "credential":
            return {"text": Path(os.environ["CREDENTIALS_DIRECTORY"], "token").read_text()}
        case "segfault":
            signal.raise_signal(signal.SIGSEGV)  # this thread's: it does not return
        case "forbidden":
            Path("/etc/kworker-test").write_text("x")
    return {"text": message.text()}
"""
FIRST = [*(f"plain {n}" for n in range(20)), "program", "pool", "credential"]
LATER = [f"later {n}" for n in range(20)]
BAD = ["segfault", "forbidden"]
TOKEN = "of systemd"


@pytest.fixture
def port(free_port: Callable[[], int]) -> int:
    return free_port()


@pytest.fixture
def made(tmp_path: Path, bootstrap: str, topic: Callable[..., str], port: int) -> Iterator[Service]:
    table = {"name": "texts", "path": "/srv/tables/texts", "schema": "text STRING"}
    spark = {"run": "elsewhere", "trigger": "200ms", "checkpoints": "/srv/tables/_checkpoints"}
    with service(
        tmp_path / "service",
        bootstrap,
        [topic("units", partitions=2)],
        handlers=HANDLERS,
        settings={
            "console": {"listen": f"127.0.0.1:{port}"},
            "retry": {"delays": []},
            "dead_letter": {"breaker": ""},
            "workers": {"processes": 2, "threads": 4},
            "spark": {**spark, "tables": [table]},
        },
    ) as made:
        yield made


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder that belongs to the service's user."""
    folder = tmp_path / "tables"
    folder.mkdir()
    os.chown(folder, pwd.getpwnam(USER).pw_uid, -1)
    return folder


@pytest.fixture
def units(tmp_path: Path, made: Service, tables: Path) -> Iterator[UnitService]:
    for archive in (jars.SPARK_KAFKA, jars.DELTA):
        jars.fetch(archive, progress=print)
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    (secret / "token").write_text(TOKEN)
    units = UnitService(made.name, made.folder, tables, secret)
    yield units
    units.systemd.close()


def test_a_service_and_its_spark_job_work_under_systemd(
    tmp_path: Path, bootstrap: str, made: Service, units: UnitService, tables: Path, port: int
) -> None:
    """Start, work, deaths, reload and stop: one story, since each start takes its time."""
    writer = Writer(bootstrap, tmp_path / "produced")

    def write(texts: Sequence[str]) -> None:
        writer.write(made.topics[0], (New(text, text.encode(), text.encode()) for text in texts))

    units.do("start", "kworker.target", units.name, units.spark)
    units.says("running")
    ConsoleClient(port).comes("/readyz")
    write(FIRST + BAD)
    expected = {*FIRST, TOKEN} - {"credential"}
    units.until(lambda: _texts(tables) == expected, "all results are in the table")
    dead = [dict(each.headers()) for each in messages(bootstrap, f"{made.name}.dead")]
    reasons = {letter[names.REASON]: letter[names.MESSAGE] for letter in dead}
    assert set(reasons) == {b"crashed", b"exhausted"}
    assert b"Read-only file system" in reasons[b"exhausted"]

    restarts = _restarts(units)
    units.kill_worker()
    units.until(lambda: _restarts(units) > restarts, "another worker took its place")
    units.says("running")
    units.do("reload", units.name)
    units.until(lambda: "reload: replacing 2 workers" in units.said(), "it reads its file again")
    assert units.show("NRestarts") == "0"

    units.kill_supervisor()
    units.until(lambda: units.show("NRestarts") == "1", "systemd has started it again")
    units.says("running")
    write(LATER)
    units.until(lambda: _texts(tables) == expected | set(LATER), "the table goes on")

    units.do("stop", "kworker.target")
    for unit in (units.name, units.spark):
        assert units.systemd.show(unit, "ActiveState") == "inactive"
        assert units.systemd.show(unit, "Result") == "success"
        assert units.systemd.show(unit, "ExecMainStatus") == "0"


def _restarts(units: UnitService) -> int:
    return sum(row["restarts"] for row in units.status().get("workers", []))


def _texts(tables: Path) -> set[str]:
    """Those in the table; none while there is no table."""
    try:
        return set(DeltaTable(str(tables / "texts")).to_pyarrow_table()["text"].to_pylist())
    except TableNotFoundError:
        return set()
