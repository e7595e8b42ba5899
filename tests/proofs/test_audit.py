"""`kworker audit` over a real run: it agrees with the run's ledgers, and finds what a hand changed.

The service is killed, its dead letters are redriven and discarded, a replay runs beside it. Then a
row is taken out of its table by hand, another is written twice, and so is a result.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake

from tests.support import kafka
from tests.support.kafka import Read, Writer, numbered
from tests.support.ledgers import Invocation, Position, Produced, by_position, invocations
from tests.support.service import Service, service
from tests.support.waiting import eventually

RECORDS = int(os.environ.get("PROOF_AUDIT", "3000"))
KILLS = 4
KINDS = 10
REJECTED, FILTERED, FAILING = 0, 1, 2  # kinds of records; all others have a result at once
SPARK_S = 180.0
HANDLER = f"""
import time
from pathlib import Path
from kworker import Reject
from tests.support.recorded import recorded

MENDED = Path(__file__).with_name("mended")

@recorded
def handle(message):
    time.sleep(0.005)
    kind = int(message.value) % {KINDS}
    if kind == {REJECTED} and not MENDED.exists():
        raise Reject("no such customer")
    if kind == {FILTERED}:
        return None
    if kind == {FAILING} and message.attempt < 3:
        raise ConnectionError("the billing service does not answer")
    return [message.value, message.value] if kind == 3 else message.value
"""


class Ran(NamedTuple):
    """A service that has come to rest after its faults, and all that it was sent."""

    service: Service
    produced: Sequence[Produced]

    def audit(self, *options: str) -> dict[str, Any]:
        """What it reports; its exit code tells whether it found something."""
        done = self.service.command("audit", "--json", "--limit", "1000000", *options)
        assert done.returncode in (0, 1), done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == bool(report["doubles"] or report["holes"])
        return report

    def results(self) -> list[Read]:
        found = kafka.read_all(self.service.bootstrap, self.service.results)
        return [read for read in found if "kworker-replay" not in read.headers]

    def of(self, kind: int) -> list[Produced]:
        return [each for each in self.produced if int(each.identity) % KINDS == kind]

    @property
    def table(self) -> Path:
        return self.service.folder / "data" / "orders"

    def table_has_all(self) -> None:
        group = f"{self.service.name}.spark.orders"
        ends = kafka.ends(self.service.bootstrap, self.service.results)
        eventually(
            lambda: kafka.committed(self.service.bootstrap, group) == ends,
            timeout_s=SPARK_S,
            every_s=0.2,
            what="the table has all",
        )


@pytest.fixture(params=["exactly-once", "at-least-once"])
def ran(tmp_path: Path, bootstrap: str, request: pytest.FixtureRequest) -> Iterator[Ran]:
    name = f"audit-{request.param}-{tmp_path.name[-4:]}-{os.getpid()}"
    source = kafka.create_topic(bootstrap, f"{name}-source", 4)
    settings: dict[str, dict[str, Any]] = {
        "workers": {"processes": 2, "threads": 8},
        "delivery": {"guarantee": request.param},
        "retry": {"delays": ["200ms", "400ms"]},
        "dead_letter": {"breaker": ""},
        "spark": {
            "trigger": "200ms",
            "checkpoints": "data/_checkpoints",
            "tables": [{"name": "orders", "path": "data/orders"}],
        },
    }
    options: dict[str, Any] = {"handlers": HANDLER, "settings": settings, "name": name}
    with service(tmp_path / "service", bootstrap, [source], **options) as here:
        here.serve()
        writer = Writer(bootstrap, here.folder / "produced")
        records = numbered(RECORDS, keys=300)
        for turn in range(KILLS):
            writer.begin(source, [next(records) for _ in range(RECORDS // KILLS)])
            victim = turn % 2
            here.until(lambda: here.worker(victim)["in_hand"] > 0, "it is at work")  # noqa: B023 - called at once
            here.kill_worker(victim)
        writer.finish()
        here.comes_to_rest()
        yield Ran(here, writer.acked)


def repeated(reads: Sequence[Read]) -> int:
    """How many came more often than once, as the topic itself tells: at least once, after kills."""
    places = Counter((read.source, read.headers.get("kworker-index")) for read in reads)
    return sum(count > 1 for count in places.values())


def last_runs(here: Service) -> dict[Position, Invocation]:
    return {position: runs[-1] for position, runs in by_position(invocations(here.ledger)).items()}


def test_an_audit_agrees_with_the_ledgers_of_the_run(ran: Ran) -> None:
    here, produced = ran.service, ran.produced
    ended = last_runs(here)
    rejected, filtered = ran.of(REJECTED), ran.of(FILTERED)
    assert {each.position for each in rejected} == {at for at, run in ended.items() if run.raised}
    twice = repeated(ran.results()) + repeated(kafka.read_all(here.bootstrap, f"{here.name}.dead"))
    before = ran.audit("--no-tables")
    assert before["records"] == len(produced)
    assert outcomes(before) == {
        "result": len(produced) - len(rejected) - len(filtered),
        "dead letter": len(rejected),
        "no result": len(filtered),
    }
    assert (before["doubles"], before["holes"], before["gone"]) == (twice, 0, 0)
    assert ran.audit("--no-tables", "--expect-results")["holes"] == len(filtered)

    (here.folder / "mended").touch()
    discarded = f"{rejected[0].position[0]}:{rejected[0].position[1]}:{rejected[0].offset}"
    assert here.command("dead", "discard", discarded).returncode == 0
    assert here.command("dead", "redrive", "--select", "reason=rejected").returncode == 0
    here.comes_to_rest()
    assert here.command("replay", "--all").returncode == 0
    ran.table_has_all()
    after = ran.audit()
    results = ran.results()
    assert outcomes(after) == {
        "result": len(produced) - len(filtered) - 1,
        "discarded": 1,
        "no result": len(filtered),
    }
    assert after["results"] == len(results)
    twice = repeated(results)
    # Without dedupe, a repeated result is in the table as often.
    assert (after["doubles"], after["holes"]) == (2 * twice, 0)
    [table] = after["tables"]
    assert (table["refused"], table["rows"], table["repeated"]) == ("", len(results), twice)

    taken, doubled, again = three_single_results(results)
    change_table(ran.table, taken.source, doubled.source)
    write_again(here, again)
    ran.table_has_all()
    found = ran.audit()
    assert found["doubles"] - after["doubles"] == 3
    assert found["holes"] == 1
    told = {(each["record"], each["kind"], each["what"]) for each in found["problems"]}
    before_told = {(each["record"], each["kind"], each["what"]) for each in after["problems"]}
    assert told - before_told == {
        (named(taken), "hole", "its result is not in table orders"),
        (named(doubled), "double", "its result is in table orders 2 times"),
        (named(again), "double", "2 results"),
        (named(again), "double", "its result is in table orders 2 times"),
    }


def outcomes(report: dict[str, Any]) -> dict[str, int]:
    return {name: count for name, count in report["outcomes"].items() if count}


def named(read: Read) -> str:
    return "{}:{}:{}".format(*read.source)


def three_single_results(results: Sequence[Read]) -> list[Read]:
    """Of records with one result each, so that each change is found for itself."""
    counts = Counter(read.source for read in results)
    return [read for read in results if counts[read.source] == 1][:3]


def change_table(path: Path, taken: Position, doubled: Position) -> None:
    """Takes one row out, and writes another once more: as somebody with a notebook might."""
    table = DeltaTable(str(path))
    rows = table.to_pyarrow_table()
    write_deltalake(table, rows.filter(is_of(doubled)), mode="append")
    topic, partition, offset = taken
    DeltaTable(str(path)).delete(
        f"source_topic = '{topic}' AND source_partition = {partition} AND source_offset = {offset}"
    )


def is_of(position: Position) -> Any:
    topic, partition, offset = position
    field = pyarrow.compute.field
    return (
        (field("source_topic") == topic)
        & (field("source_partition") == partition)
        & (field("source_offset") == offset)
    )


def write_again(here: Service, result: Read) -> None:
    """The same result once more, which the job then writes, too."""
    producer = Producer({"bootstrap.servers": here.bootstrap})
    producer.produce(here.results, result.value, result.key, headers=list(result.headers.items()))
    assert producer.flush(30) == 0
