"""From topic to table while all on the way is killed: each result is in the table, and once."""

import os
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from kworker.sandbox import Options, Sandbox
from tests.support import kafka, oracles, shared, written
from tests.support.evidence import SHOWN, Evidence, gather
from tests.support.kafka import Read, Writer, numbered
from tests.support.ledgers import Fault, Invocation, Position, Produced, now_ns
from tests.support.service import Service, lasting, named, service, stop
from tests.support.tables import Reader, Rows
from tests.support.waiting import eventually, repeated

# For a proof 100000: then workers are killed 33 times, Spark twice, and no case is spared a fault.
RECORDS = int(os.environ.get("PROOF_TOPIC_TO_TABLE", "6000"))
KILLS = max(5, RECORDS // 3_000)
PROOF = KILLS > 5
WORKERS, PARTITIONS = 4, 8
BUSY = 50  # records in flight as last told, of which some are still so when the kill comes
PORTION = RECORDS * 5 // 6 // KILLS  # before each kill
MORE, MORE_S = 400, 0.1  # where a worker runs dry
FEW, FEW_S = 2, 0.5  # where any record will do
PACE_S = 1.0
SERIES_S, SERIES_FREE = 10.0, 2  # of a slot's deaths so many are answered without a back-off
SPARK_S = 180.0

STEADY = lasting(0.02)
FAILING = """
import time
from kworker import Reject, Retry
from tests.support.recorded import recorded

@recorded
def handle(message):
    time.sleep(0.02)
    kind = int(message.value) % 50
    if kind == 0:
        raise Reject("no such customer")
    if kind == 1 or (kind == 2 and message.attempt < 3):
        raise ConnectionError("the billing service does not answer")
    if 3 <= kind < 8 and message.attempt == 1:
        raise Retry("busy", after="500ms")
    return message.value
"""
KINDS = 50
DEAD = {0: b"rejected", 1: b"exhausted"}
RUNS = {1: 3, 2: 3, **dict.fromkeys(range(3, 8), 2)}  # the others have one
DELAYS = ("500ms", "1s")
# By the time of appending, against which commits can be held; else as kworker plans its topics.
STAMPED = {
    "message_timestamp_type": "LogAppendTime",
    "max_message_bytes": "1114124",
    "retention_ms": "-1",
}
TRANSFORMS = """
def doubled(rows):
    number = rows.value.cast("bigint")
    positions = [name for name in rows.columns if name.startswith("source_")]
    return rows.select(*positions, number.alias("number"), (2 * number).alias("doubled"))
"""


@pytest.fixture(scope="module")
def breakable(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Sandbox]:
    """A broker that these tests alone use, since they kill it."""
    folder = tmp_path_factory.mktemp("breakable") / "sandbox"
    shared.guard(folder)
    sandbox = Sandbox(folder, Options(kafka_port=free_port(), redis=False))
    sandbox.up()
    yield sandbox
    sandbox.down(wipe=True)


def test_exactly_once_puts_every_result_into_the_table_once(
    tmp_path: Path, breakable: Sandbox, tables: Reader
) -> None:
    """Aborted results are in the topic, too, and no reader sees them."""
    faults = {"other instance", "spark"}
    with storm(tmp_path, breakable, "exactly-once", STEADY, faults) as struck:
        found = struck.rage()
    assert found.uncommitted_results > len(found.results), "an invalid run: nothing was aborted"
    assert found.contradictions() == {}
    assert amiss(struck.rows(tables), found.produced) == {}


def test_exactly_once_makes_each_record_a_row_or_a_dead_letter(
    tmp_path: Path, breakable: Sandbox, tables: Reader
) -> None:
    """One of them, once; also where the delay process is killed between the attempts."""
    with storm(tmp_path, breakable, "exactly-once", FAILING, {"delay"}) as struck:
        found = struck.rage()
    letters = struck.read("dead")
    delayed = struck.read(*(f"retry.{delay}" for delay in DELAYS))
    living = [record for record in found.produced if kind(record) not in DEAD]
    dying = [record for record in found.produced if kind(record) in DEAD]
    again = [(r.position, n) for r in found.produced for n in range(2, RUNS.get(kind(r), 1) + 1)]
    assert found.uncommitted_results > len(found.results), "an invalid run: nothing was aborted"
    assert of_single_runs(found).contradictions() == {}
    assert differences([read.source for read in found.results], positions(living)) == []
    assert differences([read.source for read in letters], positions(dying)) == []
    assert misjudged(letters, found.produced) == []
    assert differences(map(attempt, delayed), again) == []
    assert differences(map(attempt, struck.read("requeue")), again) == []
    reached = oracles.first_results([*found.results, *letters, *delayed])
    assert oracles.unsafe(found.commits, found.produced, reached) == []
    assert oracles.unsafe_maps(found.commits, found.produced, reached) == []
    assert without_a_kill(found) == []
    assert amiss(struck.rows(tables), living) == {}


def test_at_least_once_with_dedupe_keeps_one_row_of_each_result(
    tmp_path: Path, breakable: Sandbox, tables: Reader
) -> None:
    """What a kill had published again is in the topic twice, and in the table once."""
    with storm(tmp_path, breakable, "at-least-once", STEADY, set(), dedupe=True) as struck:
        found = struck.rage()
    print(f"{len(found.results) - len(found.produced)} results came again")
    assert len(found.results) > len(found.produced), "an invalid run: nothing came again"
    assert found.contradictions() == {}
    assert amiss(struck.rows(tables), found.produced) == {}


# What is done to a service.


class Storm:
    """A service with a table, another instance of it, and all that is done to them."""

    def __init__(
        self, here: Service, there: Service, sandbox: Sandbox, guarantee: str, faults: set[str]
    ) -> None:
        """`faults` are those beside the kills of workers."""
        self.here, self.there = here, there
        self._sandbox = sandbox
        self._guarantee = guarantee
        self._faults = faults | {"other instance", "spark", "broker"} if PROOF else faults
        self._stream = Stream(here)
        self._batches = Batches(here.folder / "data")

    def rage(self) -> Evidence:
        """All of it; then what the service has left behind."""
        self.here.serve()
        began = time.monotonic()
        for turn in range(KILLS):
            self._stream.write(PORTION)
            self._kill_worker()
            for event in self._beside(turn):
                event()
        raged_s = time.monotonic() - began
        self._stream.write_rest()
        self._come_to_rest()
        found = self._gather()
        faults = dict(Counter(fault.what for fault in found.faults))
        told = f"{len(found.produced)} records, {len(found.repeated)} runs again"
        print(f"{told}; in {raged_s:.0f} s: {faults}")
        ran = {run.pid for run in found.runs} & self.there.logged("worker_pid")
        assert bool(ran) == ("other instance" in self._faults), "an invalid run"
        return found

    def rows(self, tables: Reader) -> Rows:
        return tables.rows(self.here.config)["orders"]

    def read(self, *endings: str) -> list[Read]:
        """All committed records of the service's topics of these names."""
        names = [f"{self.here.name}.{ending}" for ending in endings]
        return [read for name in names for read in kafka.read_all(self.here.bootstrap, name)]

    def _beside(self, turn: int) -> Iterator[Callable[[], object]]:
        """What happens beside the kill of a worker, a fifth of the kills after what was before."""
        fifth = KILLS // 5
        by_turn = [
            (fifth, "other instance", self.there.start),
            (2 * fifth, "spark", self._kill_spark),
            (3 * fifth, "broker", self._restart_broker),
            (4 * fifth, "other instance", self._leave),
            (5 * fifth, "spark", self._kill_spark),
            (turn // 5 * 5 + 3, "delay", self._kill_delay),
        ]
        for due, fault, event in by_turn:
            if due == turn and fault in self._faults:
                yield event

    def _kill_worker(self) -> None:
        killed = [fault for fault in self.here.faults.faults if fault.slot >= 0]

        def victims() -> list[dict[str, Any]]:
            """Those at work; whoever waits for one sees to it that there is some."""
            if killed and seconds_since(killed[-1]) < PACE_S:
                return []
            rows = [row for row in self.here.workers().values() if _may_die(row, killed)]
            busy = [row for row in rows if row["in_flight"] >= BUSY]
            if rows and not busy:
                self._stream.flow(MORE, MORE_S)
            return busy

        def kill(_: int) -> Fault:
            rows = eventually(victims, timeout_s=60, every_s=0.01, what="a worker is at work")
            killed.append(self.here.kill_worker(min(rows, key=lambda row: row["restarts"])["slot"]))
            return killed[-1]

        repeated(kill, lambda fault: self.here.cut_off(fault.pid) > 0, what="a kill that hits")

    def _kill_spark(self) -> None:
        """Between what a batch has written and the note that it has."""
        jvm = psutil.Process(self._eventually(self._jvm, "Spark runs", SPARK_S))

        def caught() -> bool:
            """Stopped first, so that it stays so."""
            if not self._batches.just_written():
                return False
            stop(jvm)
            if self._batches.under_way:
                return True
            jvm.resume()
            return False

        self._eventually(caught, "a batch is written", SPARK_S, every_s=0.001)
        self.here.kill_other("spark", jvm.pid)
        assert self._batches.under_way, "an invalid run: Spark had finished its batch"

    def _jvm(self) -> int:
        if not self._batches.under_way:
            return 0
        found = named("java", self.here.processes())
        return found[0].pid if len(found) == 1 else 0

    def _kill_delay(self) -> None:
        """While something waits for it."""

        def waits() -> int:
            told = self.here.status()
            waiting = sum(row["waiting"] for row in told["delays"])
            pid = int(told["delay"]["pid"] or 0)
            return pid if waiting and pid not in self.here.killed else 0

        self.here.kill_other("delay", self._eventually(waits, "something waits"))

    def _restart_broker(self) -> None:
        in_flight = self._eventually(self._in_flight, "something is under way")
        pid, from_ns = self._sandbox.broker_pid(1), now_ns()
        self._sandbox.stop_broker(1, kill=True)
        self._sandbox.start_broker(1)
        self.here.faults.add(Fault("kill -9 broker", pid, -1, (), from_ns, now_ns(), in_flight))

    def _in_flight(self) -> int:
        return sum(row["in_flight"] for row in self.here.workers().values())

    def _leave(self) -> None:
        """Not while workers get over the broker's absence: what they cannot publish in time then,
        because a partition is revoked, is done again.
        """

        def calm() -> bool:
            rows = [*self.here.workers().values(), *self.there.workers().values()]
            return bool(self.there.counter("done")) and not any(row["reasons"] for row in rows)

        self.there.is_running()
        self._eventually(calm, "the other instance has its share, and nobody is in doubt", 60.0)
        assert self.there.stop() == 0
        self.there.is_gone()

    def _eventually(
        self,
        condition: Callable[[], int],
        what: str,
        timeout_s: float = 30.0,
        *,
        every_s: float = 0.02,
    ) -> int:
        """While a few records flow."""

        def flowing() -> int:
            self._stream.flow(FEW, FEW_S)
            return condition()

        return eventually(flowing, timeout_s=timeout_s, every_s=every_s, what=what)

    def _come_to_rest(self) -> None:
        """Every record has its end, and the table has all results."""
        here, written = self.here, self._stream.acked
        here.caught_up()
        eventually(
            lambda: len({read.source for read in self.read("results", "dead")}) == len(written),
            timeout_s=60,
            every_s=1,
            what="every record has its end",
        )
        ends, group = kafka.ends(here.bootstrap, here.results), f"{here.name}.spark.orders"
        eventually(
            lambda: kafka.committed(here.bootstrap, group) == ends,
            timeout_s=SPARK_S,
            every_s=0.2,
            what="the table has all",
        )
        here.is_running()
        here.ends_well()

    def _gather(self) -> Evidence:
        here = self.here
        once = self._guarantee == "exactly-once"
        found = gather(here, self._stream.acked, here.results, exactly_once=once)
        return replace(found, workers={*found.workers, *self.there.logged("worker_pid")})


def _may_die(row: dict[str, Any], killed: Sequence[Fault]) -> bool:
    """It runs, and another would be in its place at once."""
    deaths = [fault for fault in killed if fault.slot == row["slot"]][-SERIES_FREE:]
    if row["phase"] != "running" or row["pid"] in [fault.pid for fault in deaths]:
        return False
    return len(deaths) < SERIES_FREE or seconds_since(deaths[0]) > SERIES_S


def seconds_since(fault: Fault) -> float:
    return (now_ns() - fault.to_ns) / 1e9


@contextmanager
def storm(
    folder: Path,
    sandbox: Sandbox,
    guarantee: str,
    handlers: str,
    faults: set[str],
    *,
    dedupe: bool = False,
) -> Iterator[Storm]:
    """Two instances of a service, neither of which runs yet."""
    name, bootstrap = f"storm-{uuid.uuid4().hex[:8]}", sandbox.bootstrap
    source = kafka.create_topic(bootstrap, f"{name}-source", PARTITIONS)
    for ending in ("results", "dead", *(f"retry.{delay}" for delay in DELAYS)):
        kafka.create_topic(bootstrap, f"{name}.{ending}", PARTITIONS, **STAMPED)
    options: dict[str, Any] = {"handlers": handlers, "name": name, "ledger": folder / "ledger"}
    settings: dict[str, dict[str, Any]] = {
        "workers": {"processes": WORKERS, "threads": 8},
        "delivery": {"guarantee": guarantee},
        "retry": {"delays": list(DELAYS)},
        # The last to end are those that die: held by a breaker, they would run again.
        "dead_letter": {"breaker": ""},
        # Longer than the broker is away: else partitions are lost, and what is in hand repeated.
        "kafka.consumer": {"heartbeat.interval.ms": 500, "session.timeout.ms": 60_000},
        "log": {"format": "json"},
    }
    table = {"name": "orders", "path": "data/orders", "transform": "transforms:doubled"}
    spark = {"trigger": "200ms", "checkpoints": "data/_checkpoints"}
    spark |= {"tables": [{**table, "dedupe": dedupe}]}
    alone = {**settings, "workers": {"processes": 1, "threads": 8}}
    beside = {"instance": "there", "settings": alone}
    with (
        service(
            folder / "here", bootstrap, [source], settings={**settings, "spark": spark}, **options
        ) as here,
        service(folder / "there", bootstrap, [source], **options, **beside) as there,
    ):
        (here.folder / "transforms.py").write_text(TRANSFORMS)
        yield Storm(here, there, sandbox, guarantee, faults)


class Stream:
    """The records of a run, which are written bit by bit so that there is always something."""

    def __init__(self, running: Service) -> None:
        self._writer = Writer(running.bootstrap, running.folder / "produced")
        [self._topic] = running.topics
        self._records = numbered(1_000 * RECORDS, keys=800)
        self._begun = 0
        self._written_at = 0.0

    @property
    def acked(self) -> list[Produced]:
        return self._writer.acked

    def write(self, count: int) -> None:
        self._begun += count
        self._writer.begin(self._topic, islice(self._records, count))

    def flow(self, count: int, every_s: float) -> None:
        """Writes some more, but not at every turn of whoever waits."""
        if time.monotonic() >= self._written_at + every_s:
            self._written_at = time.monotonic()
            self.write(count)

    def write_rest(self) -> None:
        """Up to `RECORDS`, unless the kills took more."""
        self.write(max(0, RECORDS - self._begun))
        self._writer.finish()


class Batches:
    """The batches of one query, as the files of its checkpoint and of its table tell."""

    def __init__(self, data: Path) -> None:
        self._checkpoint = data / "_checkpoints" / "orders"
        self._log = data / "orders" / "_delta_log"
        self._versions_before = 0

    @property
    def under_way(self) -> bool:
        """Whether one is planned, and not noted as finished."""
        return written.planned(self._checkpoint) > written.noted(self._checkpoint)

    def just_written(self) -> bool:
        """Whether the one under way was seen to write; to be asked again and again."""
        versions = written.highest(self._log, ".json")
        if not self.under_way:
            self._versions_before = versions
        return self.under_way and versions > self._versions_before


# What is held against what was written.


def kind(record: Produced) -> int:
    return int(record.identity) % KINDS


def positions(records: Iterable[Produced]) -> list[Position]:
    return [record.position for record in records]


def attempt(read: Read) -> tuple[Position, int]:
    """Which run of which record a letter is for."""
    return read.source, int(read.headers["kworker-attempt"])


def differences(found: Iterable[Hashable], expected: Iterable[Hashable]) -> list[object]:
    """What is there too often, or not as often as it should be; the first few."""
    have, want = Counter(found), Counter(expected)
    return [*(have - want).items(), *(want - have).items()][:SHOWN]


def misjudged(letters: Iterable[Read], produced: Iterable[Produced]) -> list[Read]:
    """Dead letters with another reason than their records gave."""
    why = {record.position: DEAD.get(kind(record)) for record in produced}
    return [read for read in letters if read.headers["kworker-reason"] != why[read.source]]


def amiss(rows: Rows, records: Sequence[Produced]) -> dict[str, list[object]]:
    """In what a table is not one row for each record, transformed."""
    numbers = {record.position: int(record.identity) for record in records}
    found = {_position(row): (row["number"], row["doubled"]) for row in rows}
    wrong = [at for at, number in numbers.items() if found.get(at) != (number, 2 * number)]
    told = {
        "positions": differences(map(_position, rows), [*numbers]),
        "values": wrong[:SHOWN],
    }
    return {what: witnesses for what, witnesses in told.items() if witnesses}


def _position(row: dict[str, Any]) -> Position:
    return row["source_topic"], row["source_partition"], row["source_offset"]


def of_single_runs(found: Evidence) -> Evidence:
    """Of the records that neither fail nor die: all that holds elsewhere holds for them."""
    single = {r.position for r in found.produced if kind(r) not in {*RUNS, *DEAD}}
    return replace(
        found,
        produced=[record for record in found.produced if record.position in single],
        runs=[run for run in found.runs if run.position in single],
        results=[read for read in found.results if read.source in single],
    )


def without_a_kill(found: Evidence) -> list[Invocation]:
    """Runs of an attempt that had been made before, by a process that nobody has killed.

    A cell, which is none of the workers, ends with its worker.
    """
    attempts: dict[tuple[Position, int], list[Invocation]] = defaultdict(list)
    for run in found.runs:
        attempts[run.position, run.attempt].append(run)
    ended = {fault.pid for fault in found.faults}
    pairs = [pair for runs in attempts.values() for pair in pairwise(runs)]
    return [run for before, run in pairs if before.pid not in ended and before.pid in found.workers]
