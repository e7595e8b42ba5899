"""`make scale`: what a record costs, and the memory that it takes, as all around it grows.

It starts a Kafka, and runs kworker over ever more records, keys, partitions and processes, and
while ever more records wait for ten minutes, are due at once, or become dead letters. The time is
from the first call of a handler to the last commit. For due records and dead letters, it is from
the assignment of their partitions until all are done or dead.

If nothing grows faster than the records, each costs the same: the largest point of a sweep may cost
1.25 times the least of the smaller ones. Memory is flat if a worker's peak at the largest point is
at most 1.25 times that at the smallest. The points of a sweep are measured in turns, up to five
times each: the short ones, of which the median counts, and those while other virtual machines took
the CPU. So CPUs that are slow for a while slow all points of a sweep. At the end, a model computes
the rates of larger hosts. A full run takes about twenty minutes. A `--quick` one takes one, and
shows that all works: its points are too short for a verdict on kworker.

Over 300 lines: the sweeps, their verdicts and the model are one program, of which each part is
short.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from bench import ours
from bench.disturbance import STOLEN, Stolen
from bench.handwritten import NO_OP_THREADS, WAIT_S, WAIT_THREADS
from bench.place import Place, servers
from bench.progress import Progress
from bench.topic import (
    DELAY,
    DELAY_S,
    PARTITIONS,
    RECORD_BYTES,
    TIMEOUT_S,
    TOPIC,
    Group,
    Key,
    delay_topic,
    distinct_key,
    ends,
    fill,
    wait_for_retries,
)
from bench.watched import SLOWEST, START_S, Broken
from kworker.errors import KworkerError
from kworker.instance.proc import rss_bytes
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.control.client import ControlClient

M = 1_000_000
# The points of each sweep, in order. Partitions are last, since they keep the broker busy longest.
FULL: dict[str, list[int]] = {
    "records": [M, 3 * M, 10 * M],  # fewer take a fraction of a second
    "keys": [1, 1_000, M, 10 * M],
    "processes": [1, 2, 4],
    "delayed": [1_000, M // 10, M],
    "waiting": [1_000, M // 10, M],
    "dead": [1_000, 10_000, M // 10, M],
    "partitions": [1, 8, 64, 256],
}
QUICK: dict[str, list[int]] = {
    "records": [5_000, 50_000],
    "keys": [50, 50_000],
    "processes": [1, 2],
    "delayed": [50, 5_000],
    "waiting": [50, 5_000],
    "dead": [500, 5_000],
    "partitions": [1, 8],
}
EACH, COMPUTED = M, 30_000  # records, where the points are not: with no-op handlers, and computing
FULL_SIZE: dict[str, Any] = {**FULL, "each": EACH, "computed": COMPUTED}
PARTED = 3  # times as many records where there are more partitions, lest their begin be measured
QUICK_PART = 20
COST_MAX = 1.25
WORKER_BYTES_MAX, CAPPED = 150 * M, ("records", "waiting")  # the limit, and the sweeps that have it
# Peaks are sampled, and the allocator's arenas come and go. But if a worker kept 10 bytes of each
# of ten million records, it would take 100 MB more.
MEMORY_MAX = 1.25
MEMORY_FROM = M // 10  # records of a point: fewer do not fill a worker's buffers
DEAD_S_MAX = 120.0  # a point of dead letters that would take longer is left out
TRIES, LASTING_S = 5, 10.0  # a point is measured so often, until its tries have lasted so long
SAMPLE_S, LOOK_S = 0.2, 0.05
CPUS = len(os.sched_getaffinity(0))
COUNTING = "counting"  # a group that has no position
DELAYS = {"KWORKER_RETRY__DELAYS": f'["{DELAY}"]'}
REJECTING = """from kworker import Message, Reject\n
def reject(_: Message) -> None:
    raise Reject("bench")
"""
HOSTS, HOST_CORES, CORES_KEPT = (1, 100), 64, 2  # of the model


class ScalePoint(NamedTuple):
    """A point of a sweep: records and their time, and the peak resident size of each process."""

    size: int
    records: int
    seconds: float
    peaks: dict[str, int]
    stolen: float  # share of the CPU

    @property
    def cost_us(self) -> float:
        return 1e6 * self.seconds / self.records


@dataclass(frozen=True)
class ScaleService(ours.Service):
    """A service with further environment variables."""

    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self, place: Place, run: str) -> dict[str, str]:
        return {**super().environment(place, run), **self.variables}


class ScaleBenchmark:
    """Measures points; the method named like a sweep returns a point's records and seconds."""

    def __init__(
        self, place: Place, sizes: dict[str, list[int]], each: int, computed: int, tries: int
    ) -> None:
        self._place = place
        self._sizes = sizes
        self._each = each
        self._computed = computed
        self._tries = tries
        self._filled: set[str] = set()
        self.left_out: list[str] = []  # points that were not measured, and why

    def points(self, sweep: str, progress: Progress) -> list[ScalePoint]:
        """Returns the points of a sweep; measures those tries that the progress does not have.

        Leaves out dead letters that would take too long, and notes that in `left_out`.
        """
        tries: dict[int, list[ScalePoint]] = {}
        for nth in range(self._tries):
            expected_us = 0.0
            for size in self._sizes[sweep] if nth == 0 else list(tries):
                expected_s = expected_us * size / 1e6
                if sweep == "dead" and nth == 0 and expected_s > DEAD_S_MAX:
                    self.left_out.append(without(sweep, size, expected_s))
                    continue
                own = tries.setdefault(size, [])
                if sum(each.seconds for each in fair(own)) < LASTING_S:
                    measure = partial(self._measure, sweep, size, nth)
                    own.append(ScalePoint(**progress.part(f"{sweep} {size} {nth}", measure)))
                    print(f"  {line(sweep, own[-1])}", flush=True)
                expected_us = own[-1].cost_us
        return [median_of(each) for each in tries.values()]

    def _measure(self, sweep: str, size: int, nth: int) -> dict[str, Any]:
        run, stolen = f"scale-{sweep}-{size}-{nth}", Stolen()
        with sampled_peaks(_client(self._place, run)) as peaks:
            records, seconds = getattr(self, sweep)(run, size)
        point = ScalePoint(size, records, seconds, peaks, stolen.share())
        self._remove_topics(run)
        return point._asdict()

    def records(self, run: str, size: int) -> tuple[int, float]:
        return self._measured(run, self._service(), size)

    def keys(self, run: str, size: int) -> tuple[int, float]:
        if size >= self._each:
            return self._measured(run, self._service(), size)
        topic = f"keys-{size}"
        self._fill(topic, self._each, key=lambda number: distinct_key(number % size))
        return self._measured(run, self._service(topic), self._each)

    def processes(self, run: str, size: int) -> tuple[int, float]:
        service = self._service(handler="compute", processes=size)
        return self._measured(run, service, self._computed)

    def delayed(self, run: str, size: int) -> tuple[int, float]:
        service = self._service(variables=DELAYS)
        self._delay(run, service, size, time.time() - DELAY_S)
        event = "delay partitions assigned to this process"
        return size, self._seconds(run, service, "done", size, event)

    def waiting(self, run: str, size: int) -> tuple[int, float]:
        service = self._service(variables=DELAYS)
        self._delay(run, service, size, time.time() + DELAY_S)
        measured = self._measured(run, service, self._each)
        if (left := self._left(f"{run}.delay", delay_topic(run))) != size:
            raise Broken(f"{left:,} of {size:,} records wait")
        return measured

    def dead(self, run: str, size: int) -> tuple[int, float]:
        (self._place.folder / "rejecting.py").write_text(REJECTING)
        variables = {
            "KWORKER_HANDLER": "rejecting:reject",
            "KWORKER_DEAD_LETTER__BREAKER": "",
            "PYTHONPATH": str(self._place.folder),
        }
        service = self._service(variables=variables)
        records = self._begin(run, service, size)
        seconds = self._seconds(run, service, "dead", records, "partitions assigned")
        if (letters := self._left(COUNTING, f"{run}.dead")) != records:
            raise Broken(f"{letters:,} dead letters, of {records:,} records")
        return records, seconds

    def partitions(self, run: str, size: int) -> tuple[int, float]:
        topic, records = f"partitions-{size}", self._each * PARTED
        self._fill(topic, records, partitions=size)
        service = self._service(topic)
        self._begin(run, service, records)
        self._wait_for_leaders(run)
        return self._measured(run, service, records)

    def _service(self, topic: str = TOPIC, handler: str = "no_op", **more: Any) -> ScaleService:
        if topic == TOPIC:
            count = max(self._each, *(max(self._sizes.get(n, [0])) for n in ("records", "keys")))
            self._fill(TOPIC, count)
        return ScaleService(handler, NO_OP_THREADS, topic, **more)

    def _fill(
        self, topic: str, count: int, partitions: int = PARTITIONS, key: Key = distinct_key
    ) -> None:
        if topic not in self._filled:
            print(f"  writing {count:,} records to {topic}", flush=True)
            fill(self._place.kafka, topic, count, key=key, partitions=partitions)
            self._filled.add(topic)

    def _begin(self, run: str, service: ScaleService, records: int) -> int:
        """Moves the group so that about so many records are left, and creates the run's topics."""
        group = Group(self._place.kafka, run, service.topic)
        left = group.begin(records)
        group.close()
        ours.command(service.environment(self._place, run), "topics", "create")
        return left

    def _wait_for_leaders(self, run: str) -> None:
        """Waits until the broker has made this run's partitions: many take it seconds of CPU."""
        consumer = Consumer({"bootstrap.servers": self._place.kafka, "group.id": COUNTING})
        deadline = time.monotonic() + START_S
        found = consumer.list_topics(timeout=TIMEOUT_S).topics
        topics = [topic for topic in found if topic.startswith(f"{run}.")]
        while topics:
            try:
                ends(consumer, topics[-1])
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)
            else:
                topics.pop()
        consumer.close()

    def _remove_topics(self, run: str) -> None:
        """Removes the topics of a run, so that the next finds a broker like the first."""
        admin = AdminClient({"bootstrap.servers": self._place.kafka})
        found = admin.list_topics(timeout=TIMEOUT_S).topics
        if topics := [topic for topic in found if topic.startswith(f"{run}.")]:
            for removed in admin.delete_topics(topics).values():
                removed.result(TIMEOUT_S)

    def _left(self, group_id: str, topic: str) -> int:
        group = Group(self._place.kafka, group_id, topic)
        left = group.left()
        group.close()
        return left

    def _delay(self, run: str, service: ScaleService, count: int, due_s: float) -> None:
        self._begin(run, service, 0)
        wait_for_retries(self._place.kafka, run, count, due_s)

    def _measured(self, run: str, service: ScaleService, records: int) -> tuple[int, float]:
        measured = ours.measure(self._place, run, service, records)
        return measured.records, measured.seconds

    def _seconds(
        self, run: str, service: ScaleService, counter: str, records: int, event: str
    ) -> float:
        """Runs the service; returns the seconds from the event in its log until all are counted."""
        client, log = _client(self._place, run), self._place.folder / f"{run}.log"
        deadline, count = time.monotonic() + START_S + records / SLOWEST, 0
        with ours.started(service.environment(self._place, run), log) as process:
            while count < records:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Broken(f"{count:,} of {records:,} records are {counter}; see {log}")
                time.sleep(LOOK_S)
                with suppress(KworkerError):  # it has not started
                    count = client.request("status")["counters"][counter]
            ended = time.time()
        if count != records:
            raise Broken(f"{count:,} records are {counter}, of {records:,}; see {log}")
        return ended - logged_at(log, event)


def fair(tries: Sequence[ScalePoint]) -> list[ScalePoint]:
    """The tries during which other virtual machines took little of the CPU."""
    return [each for each in tries if each.stolen <= STOLEN]


def median_of(tries: Sequence[ScalePoint]) -> ScalePoint:
    """The try with the median cost of the fair ones; without any, the one with the least stolen.

    Of an even number, two are in the middle: it is the one of them with less stolen.
    """
    if not (chosen := sorted(fair(tries), key=lambda each: each.cost_us)):
        return min(tries, key=lambda each: each.stolen)
    middle = chosen[(len(chosen) - 1) // 2 : len(chosen) // 2 + 1]
    return min(middle, key=lambda each: each.stolen)


def without(sweep: str, size: int, expected_s: float) -> str:
    """The line of a point that is left out."""
    why = f"at the cost of the point before it would take {expected_s:,.0f} s"
    return f"{sweep} {size:,}: {why}, over {DEAD_S_MAX:g} s"


def _client(place: Place, run: str) -> ControlClient:
    return ControlClient(run, StateFolder(place.folder / f"{run}.state"))


@contextmanager
def sampled_peaks(client: ControlClient) -> Iterator[dict[str, int]]:
    """Yields the peak resident sizes of the service's processes; a thread keeps them up to date."""
    peaks = {"worker": 0, "delay": 0, "supervisor": 0}
    ended = Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            with suppress(KworkerError):  # it does not run
                status = client.request("status")
                pids = [("supervisor", status["pid"]), ("delay", status["delay"]["pid"])]
                pids += [("worker", row["pid"]) for row in status["workers"]]
                for name, pid in pids:
                    peaks[name] = max(peaks[name], rss_bytes(pid))

    thread = Thread(target=sample)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def logged_at(log: Path, event: str) -> float:
    """Returns the time of the first such event in a log of JSON lines, in seconds since 1970."""
    for text in log.read_text().splitlines():
        if f'"{event}"' in text:
            return datetime.fromisoformat(json.loads(text)["timestamp"]).timestamp()
    raise Broken(f"no {event!r} in {log}")


def line(sweep: str, point: ScalePoint) -> str:
    """The row of the table for a point."""
    sizes = "".join(f"{size / M:>10.0f} MB" for size in point.peaks.values())
    told = f"  {point.stolen:.0%} of the CPU went to others" if point.stolen > STOLEN else ""
    if sweep == "processes" and point.size > CPUS:
        told += f"  (there are {CPUS} CPUs: no verdict)"
    return (
        f"{sweep:<11}{point.size:>11,}{point.records:>12,}{point.seconds:>9.1f} s"
        f"{point.cost_us:>9.2f} µs{sizes}{told}"
    )


def verdicts(sweep: str, points: Sequence[ScalePoint]) -> Iterator[tuple[bool, str]]:
    """Yields whether each limit is kept, and a line that says so."""
    judged = [point for point in points if sweep != "processes" or point.size <= CPUS]
    if len(judged) > 1:
        least_us = min(point.cost_us for point in judged[:-1])
        ratio = judged[-1].cost_us / least_us
        yield (
            ratio <= COST_MAX,
            f"{sweep}: at {judged[-1].size:,} a record costs {ratio:.2f} × the least of the smaller"
            f" points ({least_us:.2f} µs), and may cost {COST_MAX} ×",
        )
    if points and sweep in CAPPED:
        yield from _memory_verdicts(sweep, points)


def _memory_verdicts(sweep: str, points: Sequence[ScalePoint]) -> Iterator[tuple[bool, str]]:
    peak = max(point.peaks["worker"] for point in points)
    yield (
        peak <= WORKER_BYTES_MAX,
        f"{sweep}: a worker takes up to {peak / M:.0f} MB,"
        f" and may take {WORKER_BYTES_MAX / M:.0f} MB",
    )
    filled = [point for point in points if point.records >= MEMORY_FROM and point.peaks["worker"]]
    if len(filled) > 1:
        ratio = filled[-1].peaks["worker"] / filled[0].peaks["worker"]
        yield (
            ratio <= MEMORY_MAX,
            f"{sweep}: at {filled[-1].size:,} a worker takes {ratio:.2f} × the memory that it takes"
            f" at {filled[0].size:,}, and may take {MEMORY_MAX} ×",
        )


class HostRates(NamedTuple):
    """The computed records a second of so many hosts, with a worker for each free core."""

    hosts: int
    workers: int
    no_op: float
    waiting: float  # with handlers that wait


def scaling(processes: Sequence[ScalePoint]) -> float:
    """The speed of each of two processes, as a part of that of one alone; 1 if not measured."""
    costs_us = {point.size: point.cost_us for point in processes}
    return min(1.0, costs_us[1] / 2 / costs_us[2]) if {1, 2} <= costs_us.keys() else 1.0


def model(cost_us: float, scale: float) -> list[HostRates]:
    """Computes the rates of larger hosts from a no-op record's cost here, and from `scaling`."""
    no_op = scale * 1e6 / cost_us
    waiting = min(no_op, WAIT_THREADS / WAIT_S)
    workers = [(hosts, hosts * (HOST_CORES - CORES_KEPT)) for hosts in HOSTS]
    return [HostRates(hosts, count, count * no_op, count * waiting) for hosts, count in workers]


def assumptions(cost_us: float, scale: float) -> list[str]:
    """Returns what the model assumes, a line each."""
    return [
        f"a worker on each of {HOST_CORES} cores but {CORES_KEPT}, for the other processes and the"
        " network",
        f"{cost_us:.2f} µs a record, as here, where Kafka has a share of the {CPUS} CPUs",
        f"each worker runs {scale:.2f} × as fast as one alone, as two here do",
        "a Kafka on other hosts, and a network, that keep up with it, and with such a group",
        f"records of {RECORD_BYTES} bytes, before compression",
        "as many partitions as workers, evenly filled: a partition has one worker",
    ]


def show_model(rows: Sequence[HostRates], assumed: Sequence[str]) -> None:
    """Prints the model with what it assumes."""
    print(f"\ncomputed, not measured: hosts of {HOST_CORES} cores. It assumes")
    print(*(f"  - {each}" for each in assumed), sep="\n")
    print(f"\n{'':<9}{'workers =':>12}{'':>16}{'no-op':>12}{f'{WAIT_S * 1e3:.0f} ms, in':>26}")
    print(f"{'hosts':<9}{'partitions':>12}{'':>16}{'handlers':>12}{f'{WAIT_THREADS} threads':>26}")
    for row in rows:
        rates = (f"{r:>14,.0f}/s {r * RECORD_BYTES / 1e9:>6.1f} GB/s" for r in row[2:])
        print(f"{row.hosts:<9}{row.workers:>12,}{''.join(rates)}")


def report(
    found: Mapping[str, Sequence[ScalePoint]],
    of: Mapping[str, Any],
    file: Path | None,
    left_out: Sequence[str] = (),
) -> bool:
    """Prints the table, the verdicts and the model; returns True if all limits are kept.

    `left_out` has a line for each point that was not measured. With `file`, writes all there, too,
    with the run's commit and size, which are in `of`.
    """
    _show_points(found)
    for each in left_out:
        print(f"left out: {each}")
    told = [verdict for sweep, points in found.items() for verdict in verdicts(sweep, points)]
    print()
    for met, text in told:
        print("PASS" if met else "FAIL", text, sep="  ")
    rows: list[HostRates] = []
    assumed: list[str] = []
    if found.get("records") and found.get("processes"):
        cost_us, scale = found["records"][-1].cost_us, scaling(found["processes"])
        rows, assumed = model(cost_us, scale), assumptions(cost_us, scale)
        show_model(rows, assumed)
    if file:
        written = {
            **of,
            "points": {name: [each._asdict() for each in points] for name, points in found.items()},
            "left_out": list(left_out),
            "verdicts": told,
            "computed": [row._asdict() for row in rows],
            "assumptions": assumed,
        }
        file.write_text(json.dumps(written, indent=1))
    return all(met for met, _ in told)


def _show_points(found: Mapping[str, Sequence[ScalePoint]]) -> None:
    print(f"\n{'sweep':<11}{'point':>11}{'records':>12}{'time':>11}{'a record':>12}", end="")
    print(f"{'worker':>13}{'delay':>13}{'supervisor':>13}")
    for sweep, points in found.items():
        print(*(line(sweep, point) for point in points), sep="\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale",
        description=(__doc__ or "").partition("\nOver 300 lines")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="two small points each")
    parser.add_argument("--only", nargs="+", choices=FULL, metavar="NAME", help=", ".join(FULL))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep each point there, and go on with those of an interrupted run",
    )
    options = parser.parse_args(argv)
    sizes, part, tries = (QUICK, QUICK_PART, 1) if options.quick else (FULL, 1, TRIES)
    each, computed = EACH // part, COMPUTED // part
    size = {**sizes, "each": each, "computed": computed}
    progress = Progress(options.resume, size)
    chosen = {name: sizes[name] for name in sizes if name in (options.only or sizes)}
    with servers(".bench-scale") as place:
        benchmark = ScaleBenchmark(place, chosen, each, computed, tries)
        found = {sweep: benchmark.points(sweep, progress) for sweep in chosen}
    of = {"commit": progress.commit, "size": size}
    return 0 if report(found, of, options.json, benchmark.left_out) else 1


if __name__ == "__main__":
    sys.exit(main())
