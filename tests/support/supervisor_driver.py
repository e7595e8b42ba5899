"""A real supervisor over a worker that needs no Kafka: what the process tests run and torment.

`python -m tests.support.supervisor_driver FOLDER`. FOLDER holds what the test wants, and what
happened:

- `settings.json`: `processes`, `drain_timeout` and the like, read at the start and at a reload;
- `limits.json`: the supervisor's waits, shortened;
- `preflight.json`: the report of the preflight check; fine when it is not there. With a `cluster`
  in it, a copy of the service on this host is looked for, too; with `takes_s`, it takes so long;
- `behaviour.json`: what a worker does, by slot or `*`, read when it is born;
- `births`: a line for each life of a worker: slot, pid, monotonic time;
  `delay-births`: the same for the delay process, whose behaviour is that of `delay`.
"""

import json
import os
import re
import select
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from kworker import log
from kworker.config.model import (
    Config,
    ConsoleSettings,
    KafkaSettings,
    LogSettings,
    SourceSettings,
    SparkSettings,
    TableSettings,
    WorkersSettings,
)
from kworker.core.phase import Phase
from kworker.core.restart import RestartPolicy
from kworker.core.wear import WearPolicy
from kworker.errors import ConfigError, ExitCode, KworkerError
from kworker.instance import host_lock
from kworker.instance.crash_journal import CrashJournal
from kworker.instance.scoreboard import RecentLetter, Slot, Text
from kworker.instance.scoreboard_fields import Field
from kworker.supervisor.code_watch import CodeWatch
from kworker.supervisor.limits import Limits
from kworker.supervisor.preflight_child import PreflightReport
from kworker.supervisor.supervisor import Supervisor
from kworker.supervisor.wiring import Wiring


def main(folder: Path, ready_fd: int | None = None) -> int:
    """The exit code of the supervisor."""
    log.configure(LogSettings(format="json"))
    config = read_config(folder)
    wiring = Wiring(
        worker_main=fake_worker,
        delay_main=fake_delay,
        preflight=lambda _: preflight(folder),
        read_config=lambda: read_config(folder),
        changed_files=CodeWatch(folder / "kworker.toml").turn,
        limits=read_limits(folder),
        spark_command=(sys.executable, "-m", "tests.support.fake_spark"),
    )
    try:
        return Supervisor(config, wiring, ready_fd).run()
    except KworkerError as error:
        print(f"kworker: {error}", file=sys.stderr)
        return error.exit_code


def preflight(folder: Path) -> PreflightReport:
    """The report that the test wants, or none."""
    wanted = _read(folder / "preflight.json")
    if "crash" in wanted:
        os.kill(os.getpid(), wanted["crash"])
    if "hang" in wanted:
        select.select([], [], [])
    select.select([], [], [], wanted.pop("takes_s", 0))
    report = PreflightReport(**{"cluster": str(folder), **wanted})
    if "cluster" in wanted:
        _tell_of_twins(read_config(folder), report)
    return report


def _tell_of_twins(config: Config, report: PreflightReport) -> None:
    """As the real one does, but for what Kafka would tell."""
    from kworker.preflight import second_copy  # with a client of Kafka's

    other = host_lock.holder(report.cluster, config)
    for finding in second_copy.here(config, other) if other else ():
        lines = {ExitCode.ALREADY_RUNNING: report.taken, ExitCode.UNREACHABLE: report.unreachable}
        lines[finding.exit_code].append(str(finding))


def read_config(folder: Path) -> Config:
    """As `toml_file.load`, from what the test wrote."""
    settings = _read(folder / "settings.json")
    if "mistake" in settings:
        raise ConfigError(settings["mistake"])
    spark = settings.pop("spark", False)
    console = {"listen": "", **settings.pop("console", {})}
    log_settings = LogSettings(**settings.pop("log", {}))
    workers = {"processes": 2, "threads": 2, "concurrency": 2, "drain_timeout": "60s"}
    return Config(
        name=settings.pop("name", "orders"),
        state_dir=folder,
        instance=settings.pop("instance", "test"),
        source=SourceSettings(topics=["orders"]),
        console=ConsoleSettings(**console),
        log=log_settings,
        kafka=KafkaSettings(common={"bootstrap.servers": "127.0.0.1:1"}),
        spark=SparkSettings(tables=[TableSettings(name="t", path=str(folder / "t"))])
        if spark
        else None,
        workers=WorkersSettings(**{**workers, **settings}),
        handler="handlers:notify",
        file=folder / "kworker.toml",
    )


def read_limits(folder: Path) -> Limits:
    """Short ones, and what the test wrote."""
    limits = {"check_every_s": 0.2, "turn_s": 0.1, **_read(folder / "limits.json")}
    restart, wear = limits.get("restart", {}), limits.get("wear", {})
    return Limits(**{**limits, "restart": RestartPolicy(**restart), "wear": WearPolicy(**wear)})


def fake_worker(config: Config, slot: Slot, lifeline_fd: int) -> int:
    """The body of a worker: what `worker.run` promises, without a record."""
    behaviours = _read(config.state_dir / "behaviour.json")
    behaviour = {**behaviours.get("*", {}), **behaviours.get(str(slot.number), {})}
    with (config.state_dir / "births").open("a+") as births:
        births.seek(0)
        born_before = any(line.startswith(f"{slot.number} ") for line in births)
        births.write(f"{slot.number} {os.getpid()} {time.monotonic()}\n")
    if behaviour.get("tell_isolation"):
        with (config.state_dir / "isolates").open("a") as isolates:
            isolates.write(f"{slot.words[Field.ISOLATE_S]}\n")
    if behaviour.get("once") and born_before:
        behaviour = {}
    if behaviour.get("tell_suspects"):
        known = CrashJournal(config.state_dir / "suspects").read()
        (config.state_dir / "known_at_birth").write_text(json.dumps(sorted(known)))
    if behaviour.get("tell_environment"):
        (config.state_dir / "environment").write_text("\n".join(os.environ))
    return FakeWorker(slot, lifeline_fd, behaviour).run()


def fake_delay(config: Config, slot: Slot, lifeline_fd: int) -> int:
    """The body of the delay process: as a worker's, but that it tells of delays."""
    behaviour = _read(config.state_dir / "behaviour.json").get("delay", {})
    with (config.state_dir / "delay-births").open("a") as births:
        births.write(f"0 {os.getpid()} {time.monotonic()}\n")
    return FakeDelay(slot, lifeline_fd, {"idle": True, **behaviour}).run()


class FakeWorker:
    """Polls, joins, works and drains, in numbers only."""

    def __init__(self, slot: Slot, lifeline_fd: int, behaviour: dict[str, Any]) -> None:
        self.slot = slot
        self.lifeline_fd = lifeline_fd
        self.behaviour = behaviour
        self.told = False
        self.begun = time.monotonic()
        self.memory = b""

    def run(self) -> int:
        if self.behaviour.get("deaf"):
            signal.signal(signal.SIGABRT, signal.SIG_IGN)
        if "die_at_boot" in self.behaviour:
            self._die(self.behaviour["die_at_boot"])
        if self.behaviour.get("hang_at_boot"):  # before it hears of SIGTERM
            select.select([self.lifeline_fd], [], [])
        deaf = self.behaviour.get("ignore_term")
        signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else self._record)
        self._join()
        while not self._told_to_drain():
            self._work()
        return self._drain()

    def _record(self, _signum: int, _frame: FrameType | None) -> None:
        self.told = True

    def _told_to_drain(self) -> bool:
        return self.told or bool(select.select([self.lifeline_fd], [], [], 0.02)[0])

    def _die(self, how: int) -> None:
        """As an exit code, or below zero as a signal."""
        if how >= 0:
            os._exit(how)
        signal.signal(-how, signal.SIG_DFL) if how != -signal.SIGKILL else None
        os.kill(os.getpid(), -how)

    def _join(self) -> None:
        words = self.slot.words
        words[Field.HEARTBEAT_NS] = time.monotonic_ns()
        words[Field.POLLED] = 1
        words[Field.IN_HAND] = self.behaviour.get("in_hand", 0)
        for index, offset in enumerate(self.behaviour.get("holds", ())):
            self.slot.hand(index).take(offset, time.monotonic_ns())
        problems = tuple(self.behaviour.get("reasons", ()))
        mine = (("orders", self.slot.number),)
        letters = tuple(RecentLetter(*each) for each in self.behaviour.get("letters", ()))
        self.slot.write_text(Text(mine, problems, mine, letters=letters))
        words[Field.RED] = bool(problems)
        self.memory = b"x" * self.behaviour.get("bytes", 0)
        words[Field.BASELINE_BYTES] = self.behaviour.get("baseline_bytes", 0)
        # Last: who reads "running" reads the rest.
        words[Field.PHASE] = Phase.JOINING if self.behaviour.get("never_joins") else Phase.RUNNING
        if "leaves_a_child" in self.behaviour and os.fork() == 0:  # as a handler may
            select.select([], [], [])
        if "holds_the_lock" in self.behaviour:
            threading.Thread(target=self._hold_the_lock, daemon=True).start()

    def _hold_the_lock(self) -> None:
        """As a handler that computes in C: from here no other thread runs."""
        time.sleep(self.behaviour.get("locks_after_s", 0))
        hand = self.slot.hand(1)
        hand.set_thread(threading.get_native_id())
        hand.take(self.behaviour["holds_the_lock"], time.monotonic_ns())
        re.match(r"(a+)+$", "a" * 60 + "b")

    def _leave_an_orphan(self) -> None:
        """As a handler's shell does with `&`: a process that ends after its parent has."""
        if (parent := os.fork()) == 0:
            if os.fork() == 0:
                os.setsid()
            os._exit(0)
        os.waitpid(parent, 0)

    def _work(self) -> None:
        if self.behaviour.get("leaves_orphans"):
            self._leave_an_orphan()
        for index in self.behaviour.get("renews", ()):
            self.slot.hand(index).take(self.behaviour["holds"][index], time.monotonic_ns())
        if not self.behaviour.get("silent"):
            self.slot.words[Field.HEARTBEAT_NS] = time.monotonic_ns()
        if "takes_late" in self.behaviour and time.monotonic() > self.begun + 0.3:
            self.slot.hand(1).take(self.behaviour.pop("takes_late"), time.monotonic_ns())
        self.slot.words[Field.STALLED_MS] = self.behaviour.get("still_ms", 0)
        if not self.behaviour.get("idle"):
            self.slot.words[Field.CONSUMED] += 1
            self.slot.words[Field.DONE] += 1
        if "die_later" in self.behaviour:
            self._die(self.behaviour["die_later"])

    def _drain(self) -> int:
        self.slot.words[Field.PHASE] = Phase.DRAINING
        for index in self.behaviour.get("lets_go", ()):
            self.slot.hand(index).clear()
        steps = self.behaviour.get("drain_steps", 0)  # of a tenth of a second
        held = Path(self.behaviour.get("drain_while", ""))  # a file
        while steps > 0 or held.is_file():
            self.slot.words[Field.IN_HAND] = max(steps, 1)
            self.slot.words[Field.HEARTBEAT_NS] = time.monotonic_ns()
            select.select([], [], [], 0.1)
            steps -= 1
        self.slot.words[Field.IN_HAND] = self.behaviour.get("leaves", 0)
        self.slot.words[Field.PHASE] = Phase.GONE
        return int(self.behaviour.get("drain_exit", 0))


class FakeDelay(FakeWorker):
    """Tells what the test wants of its delays."""

    def _join(self) -> None:
        super()._join()
        rows = tuple((name, count, due) for name, count, due in self.behaviour.get("rows", ()))
        lag = self.behaviour.get("behind")  # by topic, a number for each partition
        behind = None if lag is None else tuple((topic, tuple(n)) for topic, n in lag.items())
        others = tuple((t, tuple(n)) for t, n in self.behaviour.get("others", {}).items())
        problems = self.slot.read_text().problems
        self.slot.write_text(Text(problems=problems, delays=rows, behind=behind, others=others))


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
