"""One service under test: its files, its processes, what can be asked of it and done to it."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from kworker.clients.admin import Admin
from kworker.config import toml_file
from kworker.config.client_properties import admin_properties
from kworker.config.topics import SETTINGS, plan
from kworker.errors import KworkerError
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.control.client import ControlClient
from tests.support import kafka, recorded
from tests.support.ledgers import At, Fault, FaultLedger, lines, now_ns, of_process
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
MAIN = "from kworker.cli.main import main; main()"
COMMAND = (sys.executable, "-c", MAIN)
COMMAND_TIMEOUT_S = 120.0
SERVING_TIMEOUT_S = 90.0
GONE_TIMEOUT_S = 60.0
SHOWN = 3_000  # characters of its output, where a test fails
_STOPPED = {"T", "Z", "X"}  # what /proc says of a thread that does nothing more until it is told

Settings = Mapping[str, Mapping[str, Any]]


def lasting(seconds: float) -> str:
    """A module whose handler takes so long, and echoes: a result tells of which record it is."""
    return f"""
import time
from tests.support.recorded import recorded

@recorded
def handle(message):
    time.sleep({seconds})
    return message.value
"""


def sticking(prefix: str) -> str:
    """The same; a value that begins so is stuck until its folder has a file `released`."""
    return f"""
import time
from pathlib import Path
from tests.support.recorded import recorded

RELEASED = Path(__file__).with_name("released")

@recorded
def handle(message):
    while message.text().startswith({prefix!r}) and not RELEASED.exists():
        time.sleep(0.02)
    return message.value
"""


ECHO = lasting(0)
# As a prelude: of another host are the lock that it takes, and the end of its client ids.
OTHER_HOST = """
from kworker import host
from kworker.instance import host_lock
host.fingerprint = lambda: "0ddba115"
here = host_lock.address
host_lock.address = lambda *of: here(*of) + b"/elsewhere"
"""


class Service:
    """A folder with `kworker.toml` and `handlers.py`, and the supervisors that run in it.

    `prelude` is Python that each of its commands runs first: what stands in for another machine,
    or for more time than a test has. `environment` is added to that of the tests, for it alone.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        topics: Sequence[str],
        *,
        handlers: str = ECHO,
        settings: Settings | None = None,
        name: str = "",
        instance: str = "here",
        ledger: Path | None = None,
        prelude: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.topics = list(topics)
        self.name = name or f"proof-{uuid.uuid4().hex[:8]}"
        self.config = folder / "kworker.toml"
        self.output = folder / "output"
        self.ledger = ledger or folder / "ledger"
        self.faults = FaultLedger(folder / "faults")
        self.process: subprocess.Popen[bytes] | None = None
        self._command = (sys.executable, "-c", f"{prelude}\n{MAIN}")
        self._variables = {
            **(environment or {}),
            "PYTHONPATH": str(ROOT),
            recorded.FOLDER: str(self.ledger),
        }
        self._client = ControlClient(self.name, StateFolder(folder / "state"))
        self.ledger.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        self.write_handlers(handlers)
        self._write_config(instance, settings or {})

    @property
    def results(self) -> str:
        return f"{self.name}.results"

    # Files.

    def write_handlers(self, text: str) -> None:
        (self.folder / "handlers.py").write_text(text)

    def _write_config(self, instance: str, settings: Settings) -> None:
        sections: dict[str, dict[str, Any]] = {
            "source": {"topics": self.topics},
            "kafka": {"bootstrap.servers": self.bootstrap},
            "console": {"listen": ""},
        }
        for section, values in settings.items():
            sections[section] = {**sections.get(section, {}), **values}
        top = {
            "name": self.name,
            "handler": "handlers:handle",
            "state_dir": "state",
            "instance": instance,
        }
        text = _toml(top)
        for section, values in sections.items():
            text += f"\n[{section}]\n{_toml(values)}"
        self.config.write_text(text)

    # The command.

    def command(self, *verb: str) -> subprocess.CompletedProcess[str]:
        """Runs `kworker …` with this configuration, to its end."""
        return subprocess.run(
            [*self._command, *verb, "--config", str(self.config)],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def create_topics(self) -> None:
        """The service's own topics, as `topics create` makes them; the source is there."""
        config = toml_file.load(self.config)
        admin = Admin(admin_properties(config), timeout_s=COMMAND_TIMEOUT_S)
        planned = plan(config, admin.topics(self.topics, SETTINGS))
        names = {spec.name for spec in planned}
        there = admin.topics(names)
        assert admin.create(spec for spec in planned if spec.name not in there) == {}
        eventually(lambda: admin.topics(names).keys() == names, what="its topics")

    def start(self, enter: Callable[[], None] | None = None) -> None:
        """A new supervisor; returns at once. `enter` is called in it before it begins."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._command, "start", "--config", str(self.config)],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=enter,
            )

    def serve(
        self, timeout_s: float = SERVING_TIMEOUT_S, enter: Callable[[], None] | None = None
    ) -> None:
        """A new supervisor, once its status is `running`."""
        self.start(enter)
        self.is_running(timeout_s)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._variables}

    # What is asked.

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def status(self) -> dict[str, Any]:
        """The document of `status --json`, over the same socket; {} while nobody answers."""
        try:
            return self._client.request("status")
        except KworkerError:
            return {}

    def state(self) -> str:
        return str(self.status().get("state", "gone"))

    def is_running(self, timeout_s: float = SERVING_TIMEOUT_S) -> None:
        """Waits until every worker has joined and nothing is wrong."""
        assert self.process
        process = self.process

        def runs() -> bool:
            assert process.poll() is None, f"ended with {process.returncode}:\n{self.said()}"
            return self.state() == "running"

        self.until(runs, "it runs", timeout_s)

    def workers(self) -> dict[int, dict[str, Any]]:
        """The rows of the status by slot."""
        return {row["slot"]: row for row in self.status().get("workers", [])}

    def worker_pids(self) -> dict[int, int]:
        """Of those that live."""
        return {slot: row["pid"] for slot, row in self.workers().items() if row["pid"]}

    def worker(self, slot: int) -> dict[str, Any]:
        """The row of a slot, as soon as somebody answers."""
        row = eventually(lambda: self.workers().get(slot), what=f"a row of worker {slot}")
        assert row
        return row

    @property
    def killed(self) -> set[int]:
        """Those that were; a status may name one until its parent has been told."""
        return {f.pid for f in self.faults.faults if f.what.startswith("kill -9")}

    def shares(self) -> list[list[At]]:
        """The source partitions of each worker."""
        rows = self.workers().values()
        return [[(t, p) for t, p in row["partitions"] if t in self.topics] for row in rows]

    def counter(self, name: str) -> int:
        return int(self.status().get("counters", {}).get(name, 0))

    def said(self) -> str:
        """All that supervisor and workers have written."""
        return self.output.read_text() if self.output.exists() else ""

    def logged(self, name: str) -> set[int]:
        """Every number that its log gives under a name, such as `worker_pid`."""
        return {int(number) for number in re.findall(rf'"{name}": ?(\d+)', self.said())}

    def committed(self) -> dict[At, int]:
        """The positions in its source topics."""
        found = kafka.committed(self.bootstrap, self.name)
        return {at: position for at, position in found.items() if at[0] in self.topics}

    def finished(self, at: At) -> int:
        """How many offsets of a partition the group holds as done, by position and map."""
        runs = kafka.named_beyond(self.bootstrap, self.name).get(at, [])
        return self.committed().get(at, 0) + sum(map(len, runs))

    def caught_up(self, timeout_s: float = 120.0) -> None:
        """Waits until the group has committed the end of every source partition."""
        ends = {}
        for topic in self.topics:
            ends.update(kafka.ends(self.bootstrap, topic))

        def left() -> int:
            found = self.committed()
            return sum(end - found.get(at, 0) for at, end in ends.items())

        self.until(lambda: left() <= 0, "it has caught up", timeout_s)

    def comes_to_rest(self, timeout_s: float = 120.0) -> None:
        """Waits until nothing is left in a source, delay or requeue topic, as the brokers tell.

        The status does not: it asks for ends each two seconds, and a record moves on within less.
        """
        retries = kafka.names(self.bootstrap, rf"{re.escape(self.name)}\.(retry\..*|requeue)")

        def rests() -> bool:
            # Positions first: a record that moves on meanwhile is found where it goes.
            done = {
                **kafka.committed(self.bootstrap, self.name),
                **kafka.committed(self.bootstrap, f"{self.name}.delay"),
            }
            # Uncommitted ones, too: a position may be seen before what its transaction wrote.
            reads = (
                kafka.read_all(self.bootstrap, name, isolation="read_uncommitted")
                for name in retries
            )
            return all(read.offset < done.get(read.at, 0) for each in reads for read in each)

        self.caught_up(timeout_s)
        self.until(rests, "it has come to rest", timeout_s)

    def handled(self, count: int, timeout_s: float = 60.0) -> None:
        """Waits until the handlers' ledger has so many lines: beginnings, ends and failures."""
        eventually(
            lambda: lines(self.ledger) >= count, timeout_s=timeout_s, what=f"{count} ledger lines"
        )

    def cut_off(self, pid: int) -> int:
        """How many handlers of a killed process had begun and not ended: what its kill hit."""
        return sum(run.end_ns is None for run in of_process(self.ledger, pid))

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        """Waits, and if in vain tells how it was in the end."""
        try:
            eventually(condition, timeout_s=timeout_s, every_s=0.1, what=what)
        except AssertionError as error:
            told = self.status()
            why = f"{told.get('state', 'gone')}, {told.get('reasons', [])}"
            said = self.said()[-SHOWN:]
            raise AssertionError(f"{error}; it is {why}\n{told}\n{said}") from None

    # What is done to it.

    def signal(self, signum: signal.Signals) -> None:
        os.kill(self.pid, signum)

    def interrupted(self) -> bool:
        """Sends one more Ctrl-C, unless it has ended."""
        assert self.process
        if self.process.poll() is None:
            self.signal(signal.SIGINT)
            return False
        return True

    def kill_worker(self, slot: int) -> Fault:
        """`kill -9` of the worker in a slot, once it has one; its status row is what was hit."""
        row = eventually(lambda: self._living(slot), what=f"worker {slot} lives")
        partitions = tuple((topic, partition) for topic, partition in row["partitions"])
        return self._kill("kill -9 worker", row["pid"], slot, partitions, row["in_hand"])

    def kill_other(self, what: str, pid: int) -> Fault:
        """`kill -9` of one of its processes that runs no handlers: of Spark, or `delay`."""
        return self._kill(f"kill -9 {what}", pid, -1, (), 0)

    def kill_supervisor(self) -> Fault:
        """`kill -9` of the supervisor, whose workers are told by nobody."""
        in_hand = sum(row["in_hand"] for row in self.workers().values())
        fault = self._kill("kill -9 supervisor", self.pid, -1, (), in_hand)
        assert self.process
        self.process.wait(GONE_TIMEOUT_S)
        return fault

    def kill_all(self) -> None:
        """`kill -9` of the supervisor and its workers: stopped first, for else they would drain."""
        rows = self.workers()
        for row in rows.values():
            os.kill(row["pid"], signal.SIGSTOP)
        self.kill_supervisor()
        for slot, row in rows.items():
            self._kill("kill -9 orphan", row["pid"], slot, (), row["in_hand"])
        self.is_gone()

    def _living(self, slot: int) -> dict[str, Any] | None:
        """A worker's row, if there is one in the slot."""
        row = self.worker(slot)
        return row if row["pid"] and row["pid"] not in self.killed else None

    def _kill(
        self, what: str, pid: int, slot: int, partitions: tuple[At, ...], in_hand: int
    ) -> Fault:
        process = psutil.Process(pid)
        from_ns = now_ns()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not lives(process), every_s=0.001, what=f"{pid} is dead")
        fault = Fault(what, pid, slot, partitions, from_ns, now_ns(), in_hand)
        self.faults.add(fault)
        return fault

    def exit_code(self, timeout_s: float = GONE_TIMEOUT_S) -> int:
        """Waits for the supervisor's end."""
        assert self.process
        return self.process.wait(timeout_s)

    def stop(self, timeout_s: float = GONE_TIMEOUT_S) -> int:
        """Drains it; the exit code."""
        self.signal(signal.SIGTERM)
        return self.exit_code(timeout_s)

    def ends_well(self) -> None:
        """Drains it: it exits with 0, and no process is left."""
        code = self.stop()
        assert code == 0, f"exit code {code}"
        self.is_gone()

    # Its processes.

    def processes(self) -> list[psutil.Process]:
        """Everything that was started in the folder and lives, whoever is its parent."""
        found = []
        for process in psutil.process_iter():
            try:
                if Path(process.cwd()) == self.folder and lives(process):
                    found.append(process)
            except (psutil.Error, OSError):  # gone meanwhile, or a kernel's
                continue
        return found

    def is_gone(self, timeout_s: float = GONE_TIMEOUT_S) -> None:
        """Waits until no process is left."""
        eventually(
            lambda: not self.processes(), timeout_s=timeout_s, what=f"gone; {self.processes()}"
        )

    def end(self) -> None:
        """Leaves nothing behind, whatever the test did."""
        for _ in range(3):  # a supervisor may fork while it is looked at
            for process in self.processes():
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
        if self.process:
            self.process.wait(GONE_TIMEOUT_S)


def named(name: str, processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those of a name. Others may end while they are looked at: launchers, for one."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.name() == name:
                found.append(process)
    return found


def stop(process: psutil.Process) -> None:
    """SIGSTOP; returns when no thread runs any more, not even in a system call."""
    process.suspend()
    tasks = Path(f"/proc/{process.pid}/task")

    def stopped() -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            texts = [stat.read_text() for stat in tasks.glob("*/stat")]
            return {text.rpartition(")")[2].split()[0] for text in texts} <= _STOPPED
        return False

    eventually(stopped, every_s=0.001, what=f"{process.pid} is stopped")


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP, until the block ends; it may be killed in the block."""
    process = psutil.Process(pid)
    stop(process)
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@contextmanager
def service(
    folder: Path, bootstrap: str, topics: Sequence[str], **options: Any
) -> Iterator[Service]:
    """A `Service` whose topics exist and whose processes end with the block."""
    made = Service(folder, bootstrap, topics, **options)
    try:
        made.create_topics()
        yield made
    except BaseException:
        print(f"it had said:\n{made.said()[-SHOWN:]}")  # shown beside what failed
        raise
    finally:
        made.end()


def lives(process: psutil.Process) -> bool:
    """Not as a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _toml(values: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(key)} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: Any) -> str:
    """JSON's strings, numbers and booleans are TOML's as well."""
    match value:
        case dict():
            pairs = (f"{json.dumps(key)} = {_toml_value(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        case list():
            return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value)
