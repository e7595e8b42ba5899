"""What `delivery.commit_interval` gives and costs: rate, latency, and what a crash repeats."""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import median, quantiles
from threading import Timer
from typing import NamedTuple

import psutil
from confluent_kafka import Consumer

from bench import ours
from bench.handwritten import NO_OP_THREADS, WAIT_THREADS
from bench.paced import PACED, PER_SECOND, Pace, pace
from bench.place import Place
from bench.topic import count_records, ends

CHOICES = ("50ms", "200ms", "500ms", "2s")
OFFSETS = "__consumer_offsets"
QUICK_CHOICES = ("50ms", "200ms", "2s")
KILL_WITHIN_S = 2.0  # after the begin of a phase of twice as long


class Row(NamedTuple):
    """One line of the table.

    A backlog with a no-op handler; and, with one that takes 10 ms, at a fixed pace: the delays from
    a record until its result is read, the entries a second in the topic of committed offsets, and
    the records that ran again after a worker was killed.
    """

    guarantee: str
    commit_interval: str
    records_per_second: int
    median_ms: float
    p99_ms: float
    entries_per_second: float
    repeated: float


def measure(
    place: Place, records: int, paced_s: float, kills: int, choices: Sequence[str]
) -> list[dict]:
    """Measures each setting. Prints each."""
    rows = []
    for exactly_once, interval in product((False, True), choices):
        row = _row(place, records, paced_s, kills, interval, exactly_once=exactly_once)
        print(f"  {_line(row)}", flush=True)
        rows.append(row)
    return [row._asdict() for row in rows]


def _row(
    place: Place, records: int, paced_s: float, kills: int, interval: str, *, exactly_once: bool
) -> Row:
    service = ours.Service(
        "result", NO_OP_THREADS, exactly_once=exactly_once, commit_interval=interval
    )
    run = f"interval-{interval}-{exactly_once}".lower()
    backlog = ours.measure(place, run, service, records)
    # Without records in hand it would not wait for the interval.
    calling = replace(service, handler="called", concurrency=WAIT_THREADS, topic=PACED)
    run = f"{run}-paced"
    environment = calling.environment(place, run)
    results = f"{run}.results"
    with (
        ours.started_at_the_end(place, run, PACED, environment),
        pace(place.kafka, results) as pacing,
    ):
        pacing.begin()
        entries, began = _entries(place.kafka), time.monotonic()
        took_ms = pacing.keep(paced_s)
        entries_per_second = (_entries(place.kafka) - entries) / (time.monotonic() - began)
        repeated = [_repeated(place.kafka, environment, results, pacing) for _ in range(kills)]
    cuts = quantiles(took_ms, n=100)
    rate = round(backlog.records / backlog.seconds)
    guarantee = "exactly once" if exactly_once else "at least once"
    return Row(guarantee, interval, rate, cuts[49], cuts[98], entries_per_second, median(repeated))


def _repeated(servers: str, environment: dict[str, str], results: str, pacing: Pace) -> int:
    """Kills the worker at some time; returns how many results came again, visible or not."""
    before = count_records(servers, results, committed=False) - pacing.written
    status = json.loads(ours.command(environment, "status", "--json"))
    [worker] = [psutil.Process(each["pid"]) for each in status["workers"]]
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
    print("\nby commit interval: a backlog with no-op handlers; latency as read_committed reads,")
    print(f"{PER_SECOND:,} records/s with handlers of 10 ms, and what a kill repeats then\n")
    for row in rows:
        print(_line(Row(**row)))
    return True


def _line(row: Row) -> str:
    rate = f"{row.records_per_second:>10,} records/s"
    latency = f"{row.median_ms:>8,.0f} ms median {row.p99_ms:>8,.0f} ms p99"
    cost = f"{row.entries_per_second:>6,.0f} entries/s{row.repeated:>7,.0f} repeated"
    return f"{row.guarantee:<14}{row.commit_interval:>6}{rate}{latency}{cost}"
