"""Two hosts run the Spark job of one service, and both may write: each result is one row."""

import json
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from confluent_kafka import Producer

from tests.support.hosts import Host
from tests.support.s3 import S3, class_path
from tests.support.service import stop
from tests.support.stores import Rows, Store, spark_lines
from tests.support.waiting import eventually

Topic = Callable[..., str]
T = TypeVar("T")

# For a proof 20: then with 100,000 results. Each takes about half a minute.
ROUNDS = int(os.environ.get("PROOF_TWO_HOSTS", "6"))
SEED = int(os.environ.get("PROOF_TWO_HOSTS_SEED", "20261123"))
A_ROUND = 5_000  # results
A_PORTION, A_PORTION_S = 25, 0.1
A_BURST = 500
ABORTED_EVERY = 10  # portions
PARTITIONS = 4
BOUND_S = 120.0  # for a cold start on a busy machine, or the end of a lease
END_S = 300.0
MISSES_MOST = 2  # the rest would show no more
SHOWN = 3
STAMP_MS = 1_700_000_040_000
TABLES = ("delta", "iceberg")

pytestmark = pytest.mark.timeout(1200 + ROUNDS * 150)


def test_two_hosts_write_each_result_once(tmp_path: Path, bootstrap: str, topic: Topic) -> None:
    """Their folders are their own, so the hosts meet in Kafka and in the tables alone."""
    store = Store(str(tmp_path / "tables"))
    results = topic("two-hosts", partitions=PARTITIONS)
    with pair(tmp_path, bootstrap, results, store, TABLES) as both:
        both.rage(ROUNDS)
        both.come_to_rest()
        assert both.amiss() == {}


def test_two_hosts_write_each_result_to_s3_once(
    tmp_path: Path, bootstrap: str, topic: Topic, s3: S3
) -> None:
    """S3 does not exclude one of two commits at once: what does must be kworker's own."""
    store = s3.store("two-hosts")
    results = topic("two-hosts-s3", partitions=PARTITIONS)
    with pair(tmp_path, bootstrap, results, store, ["delta"], class_path()) as both:
        both.rage(ROUNDS // 2)
        both.come_to_rest()
        assert both.amiss() == {}


# The results, and how they stand in a table.


class Flow:
    """Results as exactly-once workers publish them: in transactions, some of which are aborted."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: Rows = Counter()
        self._topic = topic
        self._due = 0.0
        self._portions = 0
        settings = {"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 3}
        self._producer = Producer(settings)
        self._producer.init_transactions(60)

    def feed(self) -> None:
        """To be called again and again: a portion more when it is due."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + A_PORTION_S
            self._send(A_PORTION)

    def until(self, count: int) -> None:
        """Sends at once what is left of so many results."""
        while (left := count - self.sent.total()) > 0:
            self._send(min(A_BURST, left))

    def _send(self, count: int) -> None:
        self._portions += 1
        if self._portions % ABORTED_EVERY == 0:
            self._produce(count)
            self._producer.flush(60)
            self._producer.abort_transaction(60)
        sources = self._produce(count)
        self._producer.commit_transaction(60)
        self.sent.update(sources)

    def _produce(self, count: int) -> list[tuple[str, int, int]]:
        self._producer.begin_transaction()
        first = self.sent.total()
        sources = [("orders", n % PARTITIONS, n) for n in range(first, first + count)]
        for topic, partition, offset in sources:
            header = f"{topic}/{partition}/{offset}/{STAMP_MS}".encode()
            headers = [("kworker-source", header)]
            self._producer.produce(self._topic, b"1", partition=partition, headers=headers)
        return sources


def differences(rows: Rows, sent: Rows) -> dict[str, Any]:
    """What is wrong with a table, with the first witnesses; nothing where each result is a row."""
    missing = sorted((sent - rows).keys())
    too_often = sorted((rows - sent).keys())
    if not missing and not too_often:
        return {}
    counts = {"rows": rows.total(), "results": sent.total()}
    wrong = {"missing": missing, "too often": too_often}
    return counts | {name: (len(found), found[:SHOWN]) for name, found in wrong.items()}


# The hosts, and what is done to them.


class Missed(Exception):
    """What a round waits for did not come in time."""


class Pair:
    """Two hosts with one configuration while results flow. Tells what was done, and missed.

    A round that misses something is cut short: in the end the tables tell what that did to them.
    """

    def __init__(self, hosts: Sequence[Host], flow: Flow, store: Store, tables: Sequence[str]):
        self._hosts = hosts
        self._flow = flow
        self._store = store
        self._tables = tables
        self._random = random.Random(SEED)
        self._missed: list[str] = []
        self._flows = True
        self._wanted: set[Host] = set()  # those that are started again when they end
        self._began = time.monotonic()
        self._tell(f"PROOF_TWO_HOSTS_SEED={SEED}")

    def rage(self, rounds: int) -> None:
        """So many faults, each kind in its turn, shuffled; before them, both make the tables."""
        kinds = [
            self._pause_writer,
            self._kill_writer,
            self._kill_python_of_writer,
            self._stop_writer,
            self._pause_writer,
            self._kill_jvm_of_writer,
            self._start_both_at_once,
            self._kill_other,
            self._pause_writer,
            self._pause_python_of_writer,
        ]
        faults = list(islice(cycle(kinds), rounds - 1))
        self._random.shuffle(faults)
        for number, fault in enumerate([self._start_both_at_once, *faults], 1):
            self._tell(f"{number} of {rounds}: {fault.__name__.strip('_').replace('_', ' ')}")
            self._attempt(fault)
            if len(self._missed) >= MISSES_MOST:
                break
            self._flow.until(number * A_ROUND)

    def come_to_rest(self) -> None:
        """One of them lands what is left; then the other, for which nothing may be left."""
        self.close()
        self._flows = False
        for host in self._shuffled():
            self._tell(f"{host} lands what is left")
            host.start("--once")
            self._attempt(partial(self._ends_well, host, END_S))

    def amiss(self) -> dict[str, object]:
        """What was missed, and by reader what is wrong in a table."""
        found: dict[str, object] = {"missed": self._missed} if self._missed else {}
        for table in self._tables:
            for reader, rows in self._store.rows(table).items():
                if wrong := differences(rows, self._flow.sent):
                    found[f"{table} by {reader}"] = wrong
        self._tell(f"{self._flow.sent.total()} results; amiss: {json.dumps(found)}")
        return found

    def close(self) -> None:
        self._wanted.clear()
        for host in self._hosts:
            host.close()

    # The faults. Each begins with both hosts up, and ends when the tables are written again.

    def _start_both_at_once(self) -> None:
        self.close()
        self._start_all()
        self._writes()

    def _pause_writer(self) -> None:
        """In the middle of a batch and past its lease: it goes on with what has moved on."""
        self._start_all()
        writer = self._caught()
        writer.pause()
        self._goes_on_late(writer)

    def _pause_python_of_writer(self) -> None:
        """Its JVM does not stop, of which nothing tells Kafka."""
        self._start_all()
        writer = self._caught()
        stop(writer.python())
        writer.jvm().resume()
        self._goes_on_late(writer)

    def _goes_on_late(self, writer: Host) -> None:
        try:
            self._writes(self._other(writer))
        finally:
            writer.resume()
        self._tell(f"{writer} goes on")
        self._writes()

    def _kill_writer(self) -> None:
        self._end_writer(Host.kill)

    def _kill_python_of_writer(self) -> None:
        self._end_writer(Host.kill_python)

    def _kill_jvm_of_writer(self) -> None:
        self._end_writer(Host.kill_jvm)

    def _end_writer(self, kill: Callable[[Host], None]) -> None:
        self._start_all()
        writer = self._caught()
        self._wanted.discard(writer)
        kill(writer)
        writer.resume()
        self._writes(self._other(writer))

    def _kill_other(self) -> None:
        self._start_all()
        writer = self._caught()
        self._wanted.discard(self._other(writer))
        self._other(writer).kill()
        writer.resume()
        self._writes(writer)

    def _stop_writer(self) -> None:
        self._start_all()
        writer = self._caught()
        self._wanted.discard(writer)
        writer.resume()
        writer.terminate()
        self._ends_well(writer, BOUND_S)
        self._writes(self._other(writer))

    # What they wait for.

    def _start_all(self) -> None:
        """What is down is started, at once and in an order of chance; then both are up."""
        for host in self._shuffled():
            if not host.runs:
                self._start(host)
        self._wanted.update(self._hosts)
        self._await(lambda: all(host.is_up for host in self._hosts), "both are up")

    def _start(self, host: Host) -> None:
        host.close()  # a JVM that a killed process has left behind
        host.start()
        self._tell(f"{host} starts")

    def _caught(self) -> Host:
        """The host that is in the middle of a batch, whose JVM is stopped now.

        Chance chooses the table, and whether the batch is there and not noted, or only planned.
        """
        table, there = self._random.choice(self._tables), self._random.random() < 0.5
        planned = {host: host.marks(table).planned for host in self._hosts}
        # By host and batch, the table's last commit when the plan was first seen.
        begun: dict[tuple[Host, int], int] = {}

        def is_there(host: Host, batch: int) -> bool:
            last = self._store.commits(table)
            return last != begun.setdefault((host, batch), last)

        def caught() -> Host | None:
            for host in self._hosts:
                batch, noted = marks = host.marks(table)
                if noted < batch != planned[host] and is_there(host, batch) == there:
                    try:
                        jvm = host.jvm()
                        stop(jvm)
                    except (LookupError, psutil.NoSuchProcess):
                        continue  # it has just ended
                    if host.marks(table) == marks and is_there(host, batch) == there:
                        where = "written" if there else "planned"
                        self._tell(f"{host} has {where} batch {batch} of {table}")
                        return host
                    jvm.resume()
            return None

        return self._await(caught, f"a batch of {table} is caught", every_s=0.002)

    def _writes(self, host: Host | None = None) -> None:
        """Waits until a host writes to all tables; None for any."""
        commits = {table: self._store.commits(table) for table in self._tables}
        marks = {table: host.marks(table) for table in self._tables} if host else {}

        def wrote(table: str) -> bool:
            noted = host is None or host.marks(table).noted != marks[table].noted
            return noted and self._store.commits(table) != commits[table]

        who = host or "a host"
        self._await(lambda: all(map(wrote, self._tables)), f"{who} writes to every table")

    def _ends_well(self, host: Host, timeout_s: float) -> None:
        self._await(lambda: host.ended() is not None, f"{host} ends", timeout_s=timeout_s)
        if host.ended() != 0:
            raise Missed(f"{host} ended with {host.ended()}")

    def _await(
        self,
        condition: Callable[[], T | None],
        what: str,
        *,
        timeout_s: float = BOUND_S,
        every_s: float = 0.02,
    ) -> T:
        """Its first true value, while results flow. Raises Missed."""
        found: list[T] = []

        def seen() -> bool:
            self._tend()
            if value := condition():
                found.append(value)
            return bool(found)

        try:
            eventually(seen, timeout_s=timeout_s, every_s=every_s, what=what)
        except AssertionError as error:
            raise Missed(str(error)) from error
        return found[0]

    def _tend(self) -> None:
        """Lets results flow, and starts a job that has ended, as systemd does."""
        if self._flows:
            self._flow.feed()
        for host in self._wanted:
            if not host.runs:
                self._tell(f"{host} has ended with {host.ended()}")
                self._start(host)

    def _attempt(self, part: Callable[[], None]) -> None:
        try:
            part()
        except Missed as error:
            self._missed.append(str(error))
            self._tell(f"missed: {error}")
            for host in self._hosts:
                print(host.said)

    def _other(self, host: Host) -> Host:
        [other] = (each for each in self._hosts if each is not host)
        return other

    def _shuffled(self) -> list[Host]:
        return self._random.sample(self._hosts, len(self._hosts))

    def _tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s: {what}", flush=True)


@contextmanager
def pair(
    folder: Path,
    bootstrap: str,
    results: str,
    store: Store,
    tables: Sequence[str],
    conf: Mapping[str, str] | None = None,
) -> Iterator[Pair]:
    """Two hosts that are not started yet; all that they started ends with the block."""
    name = f"two-hosts-{uuid.uuid4().hex[:8]}"
    # With the one compiler of short-lived JVMs the default of its cache is soon full.
    usual = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:ReservedCodeCacheSize=240m",
    }
    lines = [
        f'name = "{name}"\nhandler = "m:f"\nstate_dir = "state"',
        '[source]\ntopics = ["orders"]',
        f'[kafka]\n"bootstrap.servers" = "{bootstrap}"',
        f'[delivery]\nguarantee = "exactly-once"\nresults = "{results}"',
        '[spark]\ntrigger = "200ms"\ncheckpoints = "checkpoints"',
        spark_lines({**usual, **store.spark, **(conf or {})}, store, tables),
    ]
    hosts = [Host(folder / f"host-{n}", f"127.0.0.{n}", "\n".join(lines)) for n in (2, 3)]
    both = Pair(hosts, Flow(bootstrap, results), store, tables)
    try:
        yield both
    finally:
        both.close()
