"""The times of a service's life: start, drain, reload, and a worker that joins the group."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from threading import Thread
from typing import NamedTuple

from confluent_kafka import Message

from bench import ours
from bench.disturbance import least_disturbed
from bench.handwritten import WAIT_THREADS
from bench.paced import PACED, PER_SECOND, pace
from bench.place import Place
from bench.topic import TOPIC, Group
from bench.watched import START_S, Broken

LONG_S = 1.0  # a handler during the drain
BEFORE_S, DURING_S = 1.0, 12.0  # of the pace, around what happens
LOOK_S = 0.01
WAITING = ours.Service("wait", WAIT_THREADS)
LOCATED = ours.Service("located", WAIT_THREADS, topic=PACED)

Part = Callable[[Place, str], Iterator[tuple[str, float]]]
"""Measures some figures in one run with this name; yields each with its seconds."""


class Row(NamedTuple):
    """One figure in seconds: of each round, and the most that is wanted, if anything is.

    `stolen` is the largest share of the CPU that others took during one of these measurements.
    """

    what: str
    seconds: list[float]
    most: float | None
    stolen: float = 0.0

    def with_round(self, seconds: float, stolen: float) -> "Row":
        """Returns the row with one more figure, and the share of the CPU stolen meanwhile."""
        stolen = max(self.stolen, round(stolen, 4))
        return self._replace(seconds=[*self.seconds, seconds], stolen=stolen)


START = "start, to the first record handled"
DRAIN = f"drain, with handlers of {LONG_S:.0f} s"
RELOAD = "kworker reload, all of it"
RELOAD_WORST = "the worst delay of a record meanwhile"
JOIN = "a second host's start, to its first record"
JOIN_KEPT = "the worst delay in partitions that stay"
JOIN_MOVED = "the worst delay in partitions that move"
BY_BROKERS = ', group.protocol = "consumer"'
JOINED = (JOIN, JOIN_KEPT, JOIN_MOVED)
MOST = {START: 3.0, DRAIN: LONG_S + 1.0, JOIN_KEPT: 0.5, JOIN_KEPT + BY_BROKERS: 0.5}
ALL = (START, DRAIN, RELOAD, RELOAD_WORST, *JOINED, *(what + BY_BROKERS for what in JOINED))


def measure(place: Place, rounds: int) -> list[dict]:
    """Measures each part in rounds. Prints the figures of each."""
    rows = {what: Row(what, [], MOST.get(what)) for what in ALL}
    for number in range(rounds):
        for part in (_start_and_drain, _reload, _join, _join_by_brokers):
            run = f"life{part.__name__}-{number}".replace("_", "-")
            found, stolen = least_disturbed(partial(_figures, place, run, part), _line)
            for what, seconds in found:
                rows[what] = rows[what].with_round(seconds, stolen)
    return [row._asdict() for row in rows.values()]


def _figures(place: Place, run: str, part: Part, again: int) -> list[tuple[str, float]]:
    return list(part(place, f"{run}-{again}"))


def _line(figures: Sequence[tuple[str, float]]) -> str:
    return "; ".join(f"{what} {seconds:.2f} s" for what, seconds in figures)


def _start_and_drain(place: Place, run: str) -> Iterator[tuple[str, float]]:
    """Stops the service while each of its threads is in a handler."""
    environment = WAITING.environment(place, run) | {"BENCH_WAIT_S": str(LONG_S)}
    group = Group(place.kafka, run, TOPIC)
    group.begin(PER_SECOND)
    group.close()
    ours.command(environment, "topics", "create")
    began = time.monotonic()
    with ours.started(environment, place.folder / f"{run}.log"):
        first = _when(place.folder / f"{run}.begun")
        time.sleep(LONG_S / 2)
        stopping = time.monotonic()
    yield START, first - began
    yield DRAIN, time.monotonic() - stopping


def _reload(place: Place, run: str) -> Iterator[tuple[str, float]]:
    environment = LOCATED.environment(place, run)
    took: list[float] = []

    def reload() -> None:
        began = time.monotonic()
        ours.command(environment, "reload")
        took.append(time.monotonic() - began)

    with ours.started_at_the_end(place, run, PACED, environment):
        delays_ms = _beside(place, run, reload)
    yield RELOAD, took[0]
    yield RELOAD_WORST, max(delays_ms) / 1000


def _join(place: Place, run: str) -> Iterator[tuple[str, float]]:
    return zip(JOINED, _joined(place, run, LOCATED.environment(place, run)), strict=True)


def _join_by_brokers(place: Place, run: str) -> Iterator[tuple[str, float]]:
    """The same with the newer group protocol, whose members keep partitions meanwhile."""
    environment = LOCATED.environment(place, run) | {
        "KWORKER_KAFKA__CONSUMER__GROUP_PROTOCOL": "consumer",
        "KWORKER_WORKERS__MEMBERSHIP": "dynamic",
    }
    what = [each + BY_BROKERS for each in JOINED]
    return zip(what, _joined(place, run, environment), strict=True)


def _joined(place: Place, run: str, environment: dict[str, str]) -> tuple[float, float, float]:
    """Starts a second host's service beside one that works."""
    other = environment | {
        "KWORKER_INSTANCE": "second",
        "KWORKER_STATE_DIR": str(place.folder / f"{run}.second"),
        "BENCH_BEGUN": str(place.folder / f"{run}.second-begun"),
    }
    delays_ms: dict[int, list[float]] = defaultdict(list)
    processes: dict[int, set[int]] = defaultdict(set)

    def observe(result: Message, delay_ms: float) -> None:
        source = dict(result.headers() or ())["kworker-source"]
        assert isinstance(source, bytes)
        partition = int(source.split(b"/")[1])
        delays_ms[partition].append(delay_ms)
        processes[partition].add(json.loads(result.value() or b"")["process"])

    began: list[float] = []
    with ours.started_at_the_end(place, run, PACED, environment), ExitStack() as second:

        def join() -> None:
            began.append(time.monotonic())
            second.enter_context(ours.started(other, place.folder / f"{run}.second.log"))

        _beside(place, run, join, observe)
        first = _when(place.folder / f"{run}.second-begun")
    kept = [max(found) for p, found in delays_ms.items() if len(processes[p]) == 1]
    moved = [max(found) for p, found in delays_ms.items() if len(processes[p]) > 1]
    if not kept or not moved:
        raise Broken(f"{len(moved)} partitions moved, and {len(kept)} stayed")
    return first - began[0], max(kept) / 1000, max(moved) / 1000


def _beside(
    place: Place,
    run: str,
    event: Callable[[], None],
    observe: Callable[[Message, float], None] | None = None,
) -> list[float]:
    """Lets something happen while records come at the pace; returns their delays."""
    with pace(place.kafka, f"{run}.results") as pacing:
        pacing.begin()
        pacing.keep(BEFORE_S)
        thread = Thread(target=event)
        thread.start()
        delays_ms = pacing.keep(DURING_S, observe)
        thread.join()
    return delays_ms


def _when(file: Path) -> float:
    """Waits for the time that a handler writes into the file."""
    deadline = time.monotonic() + START_S
    while not (text := file.read_text() if file.exists() else ""):
        if time.monotonic() > deadline:
            raise Broken(f"no handler has written {file}")
        time.sleep(LOOK_S)
    return float(text)


def show(rows: Sequence[dict]) -> bool:
    """Prints the table and the verdicts; returns True if every target is met."""
    print(f"\ntimes of a service; {PER_SECOND:,} records/s meanwhile, handlers of 10 ms\n")
    met = [_show(Row(**row)) for row in rows]
    return all(met)


def _show(row: Row) -> bool:
    seconds = median(row.seconds)
    met = row.most is None or seconds <= row.most
    verdict = "    " if row.most is None else "PASS" if met else "FAIL"
    wanted = "" if row.most is None else f", and must be at most {row.most:g} s"
    print(f"{verdict}  {row.what:<76}{seconds:>8.2f} s{wanted}")
    return met
