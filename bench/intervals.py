"""What `delivery.commit_interval` gives and costs: rate, latency, and what a crash repeats.

The costs for the brokers are requests and entries. Requests are those that commit, as the status of
the service counts them: at least once, an OffsetCommit for each commit that the brokers accepted.
Exactly once, AddOffsetsToTxn, TxnOffsetCommit and EndTxn for each committed transaction. A
transaction also needs at least one AddPartitionsToTxn for its results. That is not counted, as its
number depends on the partitions; nor are the Produce requests of the results. Entries are records
in the topic of committed offsets, one for each partition in a commit. Exactly once, the marker of
each transaction in each partition of that topic is one, too.

A worker with nothing in hand commits at once. So at the fixed pace its handlers take so long that
some always run, and both costs are counted while the pace lasts. A setting is Broken if it commits
much more often than its interval says.
"""

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from statistics import median, quantiles
from threading import Timer
from typing import Any, NamedTuple

import psutil
from confluent_kafka import Consumer

from bench import ours
from bench.disturbance import least_disturbed
from bench.handwritten import NO_OP_THREADS, WAIT_THREADS
from bench.paced import PACED, PER_SECOND, Pace, pace
from bench.place import Place
from bench.topic import count_records, ends
from bench.watched import Broken
from kworker.core.duration import parse_duration
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.control.client import ControlClient

CHOICES = ("50ms", "200ms", "500ms", "2s")
OFFSETS = "__consumer_offsets"
QUICK_CHOICES = ("50ms", "200ms", "2s")
KILL_WITHIN_S = 2.0  # after the begin of a phase of twice as long
COMMITS_LEAST = 5  # in the time in which requests and entries are counted
CALL_S = 0.050  # of a handler: 64 threads do 1,280 calls a second
SETTLE_S = 0.5  # at the fixed pace, before the counted time and after it
# Commits for each interval. One more than the intervals fits into the counted time.
COMMITS_MOST = 1.3
TRANSACTION_REQUESTS = ("AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")  # one of each


class Row(NamedTuple):
    """One line of the table.

    The rate of a backlog with a result for each record. Then, at a fixed pace and with a handler
    that takes 50 ms: the delays from a record until its result is read, the entries a second in the
    topic of committed offsets, the results that came twice after a worker was killed, and the
    requests a second that commit. `stolen` is the share of the CPU that other virtual machines
    took.
    """

    guarantee: str
    commit_interval: str
    records_per_second: int
    median_ms: float
    p99_ms: float
    entries_per_second: float
    repeated: float
    requests_per_second: float = 0.0
    stolen: float = 0.0


class Setting(NamedTuple):
    """A commit interval with a guarantee."""

    interval: str
    exactly_once: bool

    def service(self, handler: str, threads: int) -> ours.Service:
        return ours.Service(
            handler, threads, exactly_once=self.exactly_once, commit_interval=self.interval
        )


class Sent(NamedTuple):
    """What the brokers have got at a monotonic time: requests of a service, entries of all."""

    at_s: float
    requests: int
    entries: int

    def rates_since(self, before: "Sent") -> tuple[float, float]:
        """Requests and entries a second."""
        seconds = self.at_s - before.at_s
        requests, entries = self.requests - before.requests, self.entries - before.entries
        return requests / seconds, entries / seconds


def measure(
    place: Place, records: int, paced_s: float, kills: int, choices: Sequence[str]
) -> list[dict]:
    """Measures each setting, again while other virtual machines take the CPU. Prints each try."""
    rows = []
    for exactly_once, interval in product((False, True), choices):
        setting = Setting(interval, exactly_once)
        rows.append(_least_disturbed(place, records, paced_s, kills, setting))
    return [row._asdict() for row in rows]


def _least_disturbed(
    place: Place, records: int, paced_s: float, kills: int, setting: Setting
) -> Row:
    def measured(number: int) -> Row:
        run = f"interval-{setting.interval}-{setting.exactly_once}-{number}".lower()
        return _row(place, run, records, paced_s, kills, setting)

    row, stolen = least_disturbed(measured, _line)
    return row._replace(stolen=round(stolen, 4))


def _row(place: Place, run: str, records: int, paced_s: float, kills: int, setting: Setting) -> Row:
    exactly_once = setting.exactly_once
    backlog = ours.measure(place, run, setting.service("result", NO_OP_THREADS), records)
    calling = replace(setting.service("called", WAIT_THREADS), topic=PACED)
    run = f"{run}-paced"
    results = f"{run}.results"
    environment = calling.environment(place, run) | {"BENCH_WAIT_S": str(CALL_S)}
    client = ControlClient(run, StateFolder(place.folder / f"{run}.state"))
    counted_s = max(paced_s, COMMITS_LEAST * parse_duration(setting.interval))
    with (
        ours.started_at_the_end(place, run, PACED, environment),
        pace(place.kafka, results) as pacing,
        ThreadPoolExecutor(1) as counter,
    ):
        pacing.begin()
        counting = counter.submit(_rates, place.kafka, client, counted_s, exactly_once=exactly_once)
        took_ms = pacing.keep(SETTLE_S + counted_s + SETTLE_S)
        requests_per_second, entries_per_second = counting.result()
        check(setting, requests_per_second)
        repeated = [_repeated(place.kafka, client, results, pacing) for _ in range(kills)]
    cuts = quantiles(took_ms, n=100)
    return Row(
        "exactly once" if exactly_once else "at least once",
        setting.interval,
        round(backlog.records / backlog.seconds),
        cuts[49],
        cuts[98],
        entries_per_second,
        median(repeated),
        requests_per_second,
    )


def requests(status: Mapping[str, Any], *, exactly_once: bool) -> int:
    """The requests that have committed, of a service with this status, since its start."""
    if exactly_once:
        return len(TRANSACTION_REQUESTS) * int(status["transactions"]["committed"]["count"])
    return int(status["counters"]["commits"])


def check(setting: Setting, requests_per_second: float) -> None:
    """Raises Broken if the setting has committed more often than its interval says."""
    requests_each = len(TRANSACTION_REQUESTS) if setting.exactly_once else 1
    commits = requests_per_second / requests_each * parse_duration(setting.interval)
    if commits > COMMITS_MOST:
        raise Broken(f"{commits:.2f} commits for each commit_interval of {setting.interval}")


def _rates(
    servers: str, client: ControlClient, seconds: float, *, exactly_once: bool
) -> tuple[float, float]:
    """Requests and entries a second, in a time that begins when the pace has settled."""
    time.sleep(SETTLE_S)
    before = _sent(servers, client, exactly_once=exactly_once)
    time.sleep(seconds)
    return _sent(servers, client, exactly_once=exactly_once).rates_since(before)


def _sent(servers: str, client: ControlClient, *, exactly_once: bool) -> Sent:
    status = client.request("status")
    return Sent(time.monotonic(), requests(status, exactly_once=exactly_once), _entries(servers))


def _repeated(servers: str, client: ControlClient, results: str, pacing: Pace) -> int:
    """Kills the worker at some time; returns how many results came twice, visible or not.

    More records ran again: those whose result was not sent before.
    """
    before = count_records(servers, results, committed=False) - pacing.written
    [worker] = [psutil.Process(each["pid"]) for each in client.request("status")["workers"]]
    timer = Timer(random.uniform(KILL_WITHIN_S / 2, KILL_WITHIN_S), worker.kill)
    timer.start()
    pacing.keep(2 * KILL_WITHIN_S)
    timer.join()
    return count_records(servers, results, committed=False) - pacing.written - before


def _entries(servers: str) -> int:
    """The sum of the end offsets of the topic of committed offsets."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "entries"})
    try:
        return sum(ends(consumer, OFFSETS).values())
    finally:
        consumer.close()


def show(rows: Sequence[dict]) -> bool:
    """Prints the table. It has no targets, so returns True."""
    call_ms = 1000 * CALL_S
    print("\nby commit interval: a backlog with a result for each record; then, at")
    print(f"{PER_SECOND:,} records/s with handlers of {call_ms:.0f} ms, latency as read_committed")
    print("reads, and the results that come twice after a kill\n")
    for row in rows:
        print(_line(Row(**row)))
    return True


def _line(row: Row) -> str:
    rate = f"{row.records_per_second:>10,} records/s"
    latency = f"{row.median_ms:>8,.0f} ms median {row.p99_ms:>8,.0f} ms p99"
    cost = f"{row.requests_per_second:>7,.1f} requests/s{row.entries_per_second:>6,.0f} entries/s"
    cost += f"{row.repeated:>7,.0f} twice"
    return f"{row.guarantee:<14}{row.commit_interval:>6}{rate}{latency}{cost}"
