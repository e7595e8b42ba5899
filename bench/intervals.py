"""The effect of `delivery.commit_interval` on throughput, and on the delay of results."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from statistics import quantiles
from typing import NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench import ours
from bench.handwritten import NO_OP_THREADS, WAIT_THREADS
from bench.place import Place
from bench.topic import PARTITIONS, RECORD_BYTES, TIMEOUT_S, Group, fill, values
from bench.watched import START_S, Broken

CHOICES = ("50ms", "100ms", "200ms", "500ms", "1s", "2s")
BESIDE = "200ms"  # for at least once, which publishes at once, with any interval
PACED = "paced"
PER_SECOND = 1_000
LOOK_S = 0.002


class Row(NamedTuple):
    """One line of the table: the rate of a no-op handler, and the delays of one that takes 10 ms.

    Delays are from the source record's time to the reader's.
    """

    guarantee: str
    commit_interval: str
    records_per_second: int
    median_ms: float
    p99_ms: float


def measure(place: Place, records: int, paced_s: float) -> list[dict]:
    """Measures each setting with a lag, and at a fixed pace of records. Prints each."""
    fill(place.kafka, PACED, 0)
    rows = []
    for exactly_once, interval in [(False, BESIDE), *((True, choice) for choice in CHOICES)]:
        service = ours.Service(
            "result", NO_OP_THREADS, exactly_once=exactly_once, commit_interval=interval
        )
        run = f"interval-{interval}-{exactly_once}".lower()
        done, seconds = ours.measure(place, run, service, records)
        # Without records in hand it would not wait for the interval.
        calling = replace(service, handler="called", concurrency=WAIT_THREADS, topic=PACED)
        took_ms = _latencies_ms(place, f"{run}-paced", calling, int(paced_s * PER_SECOND))
        cuts = quantiles(took_ms, n=100)
        guarantee = "exactly once" if exactly_once else "at least once"
        row = Row(guarantee, interval, round(done / seconds), cuts[49], cuts[98])
        print(f"  {_line(row)}", flush=True)
        rows.append(row)
    return [row._asdict() for row in rows]


def show(rows: Sequence[dict]) -> None:
    """Prints the table, if there is one."""
    if not rows:
        return
    print("\nby commit interval: a backlog with no-op handlers; latency as read_committed reads,")
    print(f"{PER_SECOND:,} records/s with handlers of 10 ms\n")
    for row in rows:
        print(_line(Row(**row)))


def _line(row: Row) -> str:
    rate = f"{row.records_per_second:>10,} records/s"
    latency = f"{row.median_ms:>8,.0f} ms median {row.p99_ms:>8,.0f} ms p99"
    return f"{row.guarantee:<14}{row.commit_interval:>6}{rate}{latency}"


def _latencies_ms(place: Place, run: str, service: ours.Service, count: int) -> list[float]:
    """Measures the delay from each source record until its result can be read."""
    group = Group(place.kafka, run, PACED)
    group.begin(0)
    group.close()
    environment = service.environment(place, run)
    ours.command(environment, "topics", "create")
    with ours.started(environment, place.folder / f"{run}.log"):
        return list(_read(place.kafka, f"{run}.results", count))


def _read(servers: str, results: str, count: int) -> Iterator[float]:
    """Writes one record, then, after its result, the others at the pace; waits for all results."""
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "latency",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    writer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 3})
    try:
        reader.assign([TopicPartition(results, p, 0) for p in range(PARTITIONS)])
        orders = values(1 + count, RECORD_BYTES)
        _write(writer, islice(orders, 1))
        if not reader.consume(1, START_S):
            raise Broken("the first result has not come")
        began = time.monotonic()
        written = read = 0
        while read < count:
            if time.monotonic() - began > TIMEOUT_S + count / PER_SECOND:
                raise Broken(f"{count - read:,} results have not come")
            due = min(count, int((time.monotonic() - began) * PER_SECOND))
            _write(writer, islice(orders, due - written))
            written = due
            for message in reader.consume(1_000, LOOK_S):
                read += 1
                yield _age_ms(message)
    finally:
        reader.close()


def _write(writer: Producer, orders: Iterator[tuple[str, str]]) -> None:
    for key, value in orders:
        writer.produce(PACED, value, key)
    writer.poll(0)


def _age_ms(result: Message) -> float:
    source = dict(result.headers() or ())["kworker-source"]
    return time.time() * 1000 - int(source.rpartition(b"/")[2])
