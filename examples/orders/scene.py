"""The orders scene, played once: process, break, count, repair, drain and count again.

`demo.py` starts it, limits its time, and ends leftover processes. All files are in `.demo`; the
example is copied there, so that its own folder does not change.
"""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import report
from confluent_kafka import KafkaException
from evidence import Evidence, Following
from oracle import HighWatermarks, Orders
from produce import CUSTOMERS, NEW_CUSTOMERS
from programs import KWORKER, PYTHON, Failed, Programs
from report import Course, Listing, Look
from stage import ENVIRONMENT, STAGE, Clock, free_port, fresh
from watch import Watch

ORDERS = 20_000
KILL_AT = ORDERS * 3 // 10
OUTAGE_AT, OUTAGE_S = ORDERS * 7 // 10, 7  # after so many calls, for so long
PUT_OFF_EVERY = 100  # orders
NOT_RUNNING, CUT_SHORT = 3, 75  # of `kworker stop`


class Scene:
    """The play: each step is a method; `play` calls them in order."""

    def __init__(self, stage: Path, undo: ExitStack) -> None:
        self._stage = stage
        self._undo = undo
        self._clock = Clock()
        self._example = stage / "orders"
        self._servers = f"127.0.0.1:{free_port()}"
        self._programs = Programs(stage, ENVIRONMENT)
        self._drained = False

    def play(self) -> bool:
        """Plays all steps; returns True if the report adds up before the redrive and after it."""
        self._sandbox()
        self._billing()
        self._produce()
        self._start()
        self._work()
        course = self._settle()
        earlier = self._count()
        added_up = report.show(report.before(earlier, course))
        self._fix()
        self._redrive()
        self._drain()
        self._finish_tables()
        return self._report(earlier, course, added_up)

    def _sandbox(self) -> None:
        self._clock.begin("sandbox", f"a real Kafka, on {self._servers}")
        folder = ("--dir", self._stage / "sandbox")
        self._undo.callback(self._programs.run, KWORKER, "sandbox", "down", *folder)
        port = self._servers.partition(":")[2]
        self._programs.run(KWORKER, "sandbox", "up", *folder, "--kafka-port", port, "--no-redis")

    def _billing(self) -> None:
        self._clock.begin("billing", "a small HTTP service that takes 5 to 10 ms for an invoice")
        faults = {
            "--customers": CUSTOMERS - len(NEW_CUSTOMERS),
            "--put-off-every": PUT_OFF_EVERY,
            "--outage-after": OUTAGE_AT,
            "--outage-s": OUTAGE_S,
        }
        options = [str(word) for option in faults.items() for word in option]
        service, self._billing_url = self._programs.start(
            PYTHON, self._example / "billing.py", "--port", "0", *options
        )
        self._undo.callback(_end, service)
        print(f"      serving on {self._billing_url}; it does not know {len(NEW_CUSTOMERS)} of the")
        print(f"      customers, puts some orders off, and will be down for {OUTAGE_S} s")
        # Overrides of the example's kworker.toml: addresses.
        self._programs = Programs(
            self._stage,
            {
                **ENVIRONMENT,
                "KWORKER_CONFIG": str(self._example / "kworker.toml"),
                "KWORKER_KAFKA__BOOTSTRAP_SERVERS": self._servers,
                "KWORKER_CONSOLE__LISTEN": "",
                "BILLING_URL": self._billing_url,
            },
        )

    def _produce(self) -> None:
        self._clock.begin("produce", f"{ORDERS:,} orders into the topic `orders`, some flawed")
        self._programs.run(KWORKER, "topics", "create", "--partitions", "8")
        produce = (PYTHON, self._example / "produce.py", "--servers", self._servers, "--flawed")
        ledger = self._stage / "ledger.jsonl"
        self._programs.run(*produce, "--orders", str(ORDERS), "--ledger", ledger)
        self._orders = Orders.of(ledger)

    def _start(self) -> None:
        self._clock.begin("start", "kworker start --daemon: a supervisor, workers, the Spark job")
        self._undo.callback(self._stop_if_it_runs)
        self._programs.run(KWORKER, "start", "--daemon")

    def _stop_if_it_runs(self) -> None:
        if not self._drained:
            self._programs.run(KWORKER, "stop", "--now", accept=(0, NOT_RUNNING, CUT_SHORT))

    def _work(self) -> None:
        self._clock.begin(
            "work", "every order calls billing; one kills its process, and the demo kills a worker"
        )
        self._evidence = Evidence(self._servers, self._billing_url, self._stage, self._programs)
        self._following = Following(self._servers)
        self._undo.callback(self._following.close)
        self._watermarks = HighWatermarks(self._servers, "orders.results")
        self._undo.callback(self._watermarks.close)
        self._watermarks.ask()  # connects its clients
        self._watch = Watch(self._programs, ORDERS)
        self._watch.ask()
        before = done = 0
        while done < ORDERS:
            self._following.read()
            before, done = done, len(self._following.ended)
            self._watch.look(done)
            # While orders are in hand, not in the outage: a kill must interrupt work.
            if KILL_AT <= before < done and not self._watch.kills:
                self._watch.kill_one(self._orders.undone(self._following.ended))
                self._show_watermarks()

    def _show_watermarks(self) -> None:
        """Shows that the log holds the dead worker's transaction, and readers do not see it."""
        by_anybody, of_committed = self._watermarks.ask()
        print(
            f"      high watermarks of the results: {by_anybody:,} with read_uncommitted,"
            f" {of_committed:,} with\n      read_committed, until the dead worker's transaction is"
            " aborted"
        )

    def _settle(self) -> Course:
        """Waits until no order is unfinished; returns the course of events until then."""
        while not _at_rest(status := self._watch.ask()) or self._evidence.lag():
            self._following.read()
            self._watch.look(ORDERS)
        return Course(
            kills=self._watch.kills,
            undone_at_kill=self._watch.undone_at_kill,
            replaced=self._watch.replaced,
            restarts=sum(worker["restarts"] for worker in status["workers"]),
            retried=status["counters"]["retried"],
        )

    def _count(self) -> Look:
        self._clock.begin("count", "results, rows and dead letters before the repair")
        self._evidence.wait_for_tables()
        self._programs.run(KWORKER, "dead", "list")
        return self._evidence.look(self._orders)

    def _fix(self) -> None:
        self._clock.begin(
            "fix", "billing adds the new customers; a release that can read damaged PDFs"
        )
        body = json.dumps(NEW_CUSTOMERS).encode()
        with urllib.request.urlopen(f"{self._billing_url}/customers", body, timeout=10) as answer:
            print(f"      billing knows {json.load(answer)['customers']} customers")
        shutil.copyfile(self._example / "fixed/attachments.py", self._example / "attachments.py")
        self._programs.run(KWORKER, "restart")

    def _redrive(self) -> None:
        self._clock.begin(
            "redrive", "the truncated orders are corrected by hand, then all dead letters run again"
        )
        cut_off, mended = (self._stage / name for name in ("cut-off.jsonl", "mended.jsonl"))
        undecodable = ("--select", "reason=undecodable")
        self._programs.run(KWORKER, "dead", "export", *undecodable, "--output", cut_off)
        mend(cut_off, mended)
        self._programs.run(KWORKER, "dead", "import", mended)
        self._programs.run(KWORKER, "dead", "redrive")
        self._watch.begin_again()
        while (done := len(self._following.done)) < ORDERS:
            self._following.read()
            self._watch.look(done)
        self._settle()
        self._programs.run(KWORKER, "dead", "list")

    def _drain(self) -> None:
        self._clock.begin("drain", "kworker stop")
        self._programs.run(KWORKER, "stop")
        self._drained = True

    def _finish_tables(self) -> None:
        self._clock.begin(
            "tables", "kworker spark run --once: results that the Spark job had not read yet"
        )
        self._programs.run(KWORKER, "spark", "run", "--once")

    def _report(self, earlier: Look, course: Course, added_up: bool) -> bool:
        self._clock.begin("report", "everything is counted again, from Kafka and from files")
        listed = json.loads(self._programs.output(KWORKER, "dead", "list", "--json"))
        look = self._evidence.look(self._orders)
        self._clock.end()
        listing = Listing(listed["count"], listed["hidden"])
        adds_up = report.show(report.after(look, earlier, listing)) and added_up
        spent = (self._watch.peak_memory_bytes, self._clock.took_s)
        report.close(adds_up, report.costs(look, earlier, course, *spent))
        return adds_up


def mend(cut_off: Path, mended: Path) -> None:
    """Corrects the truncated orders as an editor would: adds the missing brace."""
    letters = [json.loads(line) for line in cut_off.read_text().splitlines()]
    lines = [json.dumps(letter | {"value": letter["value"] + "}"}) for letter in letters]
    mended.write_text("\n".join(lines) + "\n")


def _at_rest(status: dict) -> bool:
    """Returns True if no record waits for a retry, is held, or is suspected."""
    waiting = sum(delay["waiting"] for delay in status["delays"])
    return not waiting and not status["held"] and not status["suspects"]


def _end(service: subprocess.Popen[str]) -> None:
    service.terminate()
    service.wait(10)


def _stop(*_: object) -> NoReturn:
    raise Failed("stopped by SIGTERM")


def main() -> int:
    signal.signal(signal.SIGTERM, _stop)
    print(
        "kworker's demo: orders in, an HTTP call each, two tables out. All its files are in .demo"
    )
    try:
        with ExitStack() as undo:
            fresh(STAGE, undo)
            adds_up = Scene(STAGE, undo).play()
    except (Failed, KafkaException, TimeoutError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if adds_up else 1


if __name__ == "__main__":
    sys.exit(main())
