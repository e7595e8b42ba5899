"""The orders scene, played once: everything is started, worked, broken, drained and counted.

Started by `demo.py`, which watches over the time and over what might be left running. Everything
lies in `.demo`; the example itself is copied there, so that its own folder stays as it was.
"""

import fcntl
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from confluent_kafka import KafkaException
from oracle import Orders, Results, lag
from programs import KWORKER, PYTHON, Failed, Programs
from report import Evidence, Tables, show
from watch import Watch

ORDERS = 20_000
KILL_AT = ORDERS * 3 // 10
NOT_RUNNING, CUT_SHORT = 3, 75  # of `kworker stop`
HERE = Path(__file__).resolve().parent
STAGE = HERE.parent.parent / ".demo"


class Scene:
    """The play: each step is a method, called in their order by `play`."""

    def __init__(self, stage: Path, undo: ExitStack) -> None:
        self._stage = stage
        self._undo = undo
        self._clock = Clock()
        self._example = stage / "orders"
        self._servers = f"127.0.0.1:{_free_port()}"
        self._programs = Programs(stage, {})
        self._drained = False

    def play(self) -> bool:
        """True when the report adds up."""
        self._sandbox()
        self._billing()
        self._produce()
        self._start()
        self._work()
        self._drain()
        self._finish_tables()
        return self._report()

    def _sandbox(self) -> None:
        self._clock.begin("sandbox", f"a real Kafka, on {self._servers}")
        folder = ("--dir", self._stage / "sandbox")
        self._undo.callback(self._programs.run, KWORKER, "sandbox", "down", *folder)
        port = self._servers.partition(":")[2]
        self._programs.run(KWORKER, "sandbox", "up", *folder, "--kafka-port", port, "--no-redis")

    def _billing(self) -> None:
        self._clock.begin("billing", "a small HTTP service that takes 5 to 10 ms for an invoice")
        service, self._billing_url = self._programs.start(
            PYTHON, self._example / "billing.py", "--port", "0"
        )
        self._undo.callback(_end, service)
        print(f"      serving on {self._billing_url}")
        # What differs from the example's own kworker.toml: addresses.
        self._programs = Programs(
            self._stage,
            {
                "KWORKER_CONFIG": str(self._example / "kworker.toml"),
                "KWORKER_KAFKA__BOOTSTRAP_SERVERS": self._servers,
                "KWORKER_CONSOLE__LISTEN": "",
                "BILLING_URL": self._billing_url,
            },
        )

    def _produce(self) -> None:
        self._clock.begin("produce", f"{ORDERS:,} orders into the topic `orders`")
        self._programs.run(KWORKER, "topics", "create", "--partitions", "8")
        produce = (PYTHON, self._example / "produce.py", "--servers", self._servers)
        self._programs.run(*produce, "--orders", str(ORDERS), "--ledger", self._ledger)

    @property
    def _ledger(self) -> Path:
        return self._stage / "ledger.jsonl"

    def _start(self) -> None:
        self._clock.begin("start", "kworker start --daemon: a supervisor, workers, the Spark job")
        self._undo.callback(self._stop_if_it_runs)
        self._programs.run(KWORKER, "start", "--daemon")

    def _stop_if_it_runs(self) -> None:
        if not self._drained:
            self._programs.run(KWORKER, "stop", "--now", accept=(0, NOT_RUNNING, CUT_SHORT))

    def _work(self) -> None:
        self._clock.begin("work", "every order calls the billing service; one worker will die")
        self._watch = Watch(self._programs, ORDERS)
        results = Results(self._servers, "orders.results")
        self._undo.callback(results.close)
        self._watch.ask()
        orders = Orders.of(self._ledger)
        while (done := len(results.seen.times)) < ORDERS:
            results.read(0.2)
            self._watch.look(done)
            if done >= KILL_AT and not self._watch.kills:
                self._watch.kill_one(orders.undone(results.seen.times))
        self._watch.ask()

    def _drain(self) -> None:
        self._clock.begin("drain", "kworker stop")
        self._programs.run(KWORKER, "stop")
        self._drained = True

    def _finish_tables(self) -> None:
        self._clock.begin(
            "tables", "kworker spark run --once: what the Spark job had not yet taken"
        )
        self._programs.run(KWORKER, "spark", "run", "--once")

    def _report(self) -> bool:
        self._clock.begin("report", "everything is counted again, from Kafka and from files")
        results = Results(self._servers, "orders.results")
        self._undo.callback(results.close)
        results.read_to_end()
        tables = self._stage / "tables.json"
        data = self._example / "data"
        reader = (PYTHON, self._example / "tables.py", data / "invoices", data / "revenue", tables)
        self._programs.output(*reader)
        with urllib.request.urlopen(f"{self._billing_url}/calls", timeout=10) as answer:
            calls = json.load(answer)
        self._clock.end()
        return show(
            Evidence(
                orders=Orders.of(self._ledger),
                results=results.seen,
                tables=Tables.of(json.loads(tables.read_text())),
                billing=calls,
                lag=lag(self._servers, "orders", "orders"),
                kills=self._watch.kills,
                undone_at_kill=self._watch.undone_at_kill,
                replaced=self._watch.replaced,
                peak_memory_bytes=self._watch.peak_memory_bytes,
                took_s=self._clock.took_s,
            )
        )


class Clock:
    """What time it is in the play, which step is on, and how long each one took."""

    def __init__(self) -> None:
        self._started_s = self._began_s = time.monotonic()
        self.step = ""
        self.took_s: dict[str, float] = {}

    def begin(self, step: str, about: str) -> None:
        self.end()
        self.step, self._began_s = step, time.monotonic()
        print(f"\n{self._began_s - self._started_s:5.1f} s  {step}: {about}", flush=True)

    def end(self) -> None:
        if self.step:
            self.took_s[self.step] = time.monotonic() - self._began_s


def _free_port() -> int:
    """Below the ports that the system gives to outgoing connections."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def _end(service: subprocess.Popen[str]) -> None:
    service.terminate()
    service.wait(10)


def _fresh(stage: Path, undo: ExitStack) -> None:
    """An empty stage with a copy of the example; an earlier play's remains are cleared away."""
    stage.mkdir(exist_ok=True)
    (stage / ".gitignore").write_text("*\n")
    lock = undo.enter_context((stage / ".lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed(f"another demo plays in {stage}: wait for its end") from None
    if (stage / "sandbox").exists():
        Programs(stage, {}).output(KWORKER, "sandbox", "down", "--dir", stage / "sandbox")
    for old in (path for path in stage.iterdir() if path.is_dir()):
        shutil.rmtree(old)
    shutil.copytree(HERE, stage / "orders", ignore=shutil.ignore_patterns("__pycache__", "data"))


def _stop(*_: object) -> NoReturn:
    raise Failed("stopped from outside")


def main() -> int:
    signal.signal(signal.SIGTERM, _stop)
    print("kworker's demo: orders in, an HTTP call each, two tables out. All of it lies in .demo")
    try:
        with ExitStack() as undo:
            _fresh(STAGE, undo)
            adds_up = Scene(STAGE, undo).play()
    except (Failed, KafkaException, TimeoutError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if adds_up else 1


if __name__ == "__main__":
    sys.exit(main())
