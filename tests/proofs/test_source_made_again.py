"""A source topic is deleted and made again: its offsets begin at 0 once more, and mean others."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import kafka
from tests.support.kafka import New, Writer, numbered
from tests.support.ledgers import Position, Produced
from tests.support.service import Service, service, sticking
from tests.support.tables import Reader
from tests.support.waiting import eventually

Topic = Callable[..., str]
Rows = Counter[tuple[int, int, str]]
"""By source partition, offset and timestamp, how often it stands in a table."""

PARTITIONS = 2
FEW, MANY = 150, 400
SPARK_S = 180.0
DEDUPED = {"dedupe": True, "schema": "value STRING"}
TABLES: list[dict[str, Any]] = [
    {"name": "delta", "path": "data/delta", "replays": True, **DEDUPED},
    {"name": "iceberg", "path": "data/iceberg", "format": "iceberg", **DEDUPED},
]


@pytest.mark.parametrize(
    ("guarantee", "first", "second"),
    [
        # The position, with a map of what is done beyond it, is beyond the new end.
        pytest.param("at-least-once", MANY, FEW, id="at-least-once, and shorter"),
        # The position is within it.
        pytest.param("exactly-once", FEW, MANY, id="exactly-once, and longer"),
    ],
)
def test_a_recreated_source_is_read_from_its_start(
    tmp_path: Path,
    bootstrap: str,
    topic: Topic,
    results: str,
    guarantee: str,
    first: int,
    second: int,
) -> None:
    """The client goes on at the old offset, and what is committed there hides all below."""
    source = topic("proof", partitions=1)
    settings = one_worker(results, guarantee)
    writer = Writer(bootstrap, tmp_path / "produced")
    options: dict[str, Any] = {"handlers": sticking("stuck"), "settings": settings}
    with service(tmp_path / "service", bootstrap, [source], **options) as reading:
        reading.serve()
        writer.write(source, [New("stuck", b"stuck", b"s")])
        writer.write(source, numbered(first, keys=10))
        eventually(lambda: reading.finished((source, 0)) >= first, what="all but one are done")
        kafka.make_again(bootstrap, source, 1)
        new = writer.write(source, numbered(second, keys=10, first=first))
        (reading.folder / "released").touch()
        each_has_a_result(bootstrap, results, new)
        reading.until(lambda: reading.committed() == {(source, 0): second}, "its position")
        reading.is_running()
        assert "source topics were deleted and created again; rejoining the group" in reading.said()
        reading.ends_well()


def test_a_killed_service_ignores_positions_of_the_former_topic(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """The worker that committed it would have heard of the new topic; the next one cannot."""
    source = topic("proof", partitions=PARTITIONS)
    settings = one_worker(results, "exactly-once")
    settings["kafka.consumer"] = {"session.timeout.ms": 3_000, "heartbeat.interval.ms": 500}
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(tmp_path / "service", bootstrap, [source], settings=settings) as reading:
        reading.serve()
        writer.write(source, spread(PARTITIONS * FEW))
        reading.caught_up()
        stale = kafka.held_of(bootstrap, reading.name, source)
        kafka.make_again(bootstrap, source, PARTITIONS)
        reading.kill_all()
        before = len(reading.said())  # by a worker that may have heard of it just then
        # One position is within the new topic, one beyond its end.
        longer = spread(2 * MANY, begin=2 * FEW)
        one_shorter = [n for n in longer if n.partition == 0 or int(n.identity) < 3 * FEW]
        new = writer.write(source, one_shorter)
        kafka.commit(bootstrap, reading.name, stale)
        assert reading.committed() == {(source, n): FEW for n in range(PARTITIONS)}
        assert kafka.ends(bootstrap, source) == {(source, 0): MANY, (source, 1): FEW // 2}
        reading.serve()
        each_has_a_result(bootstrap, results, new)
        reading.caught_up()
        told = reading.said()[before:]
        assert told.count("the partition is read from its first offset") == PARTITIONS
        assert reading.counter("maps_ignored") == 0
        reading.ends_well()
    found = [(read.source, read.value) for read in kafka.read_all(bootstrap, results)]
    assert len(found) == len(set(found)) == PARTITIONS * FEW + len(new)


def one_worker(results: str, guarantee: str) -> dict[str, dict[str, Any]]:
    return {
        "workers": {"processes": 1},
        "delivery": {"results": results, "guarantee": guarantee},
    }


def each_has_a_result(bootstrap: str, results: str, written: list[Produced]) -> None:
    """Waits for one with its value, from where it stands."""
    wanted = {(record.position, record.identity.encode()) for record in written}

    def found() -> set[tuple[Position, bytes | None]]:
        return {(read.source, read.value) for read in kafka.read_all(bootstrap, results)}

    eventually(
        lambda: wanted <= found(),
        timeout_s=60,
        every_s=0.2,
        what="a result of each of the new records",
    )


def test_a_source_recreated_unread_waits_for_a_person(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str
) -> None:
    """The brokers forget positions with a topic: that could be a loss of positions as well."""
    source = topic("proof", partitions=1)
    settings = {"workers": {"processes": 1}, "delivery": {"results": results}}
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(tmp_path / "service", bootstrap, [source], settings=settings) as reading:
        reading.serve()
        writer.write(source, numbered(FEW, keys=10))
        reading.caught_up()
        assert reading.stop() == 0
        kafka.make_again(bootstrap, source, 1)
        writer.write(source, numbered(MANY, keys=10, first=FEW))
        reading.start()
        [reason] = eventually(lambda: reading.status().get("reasons"), timeout_s=30)
        assert "its source topics were deleted and made again" in reason
        assert "run `kworker offsets reset` to choose where the group goes on" in reason
        assert reading.state() == "waiting"
        assert reading.stop() == 0
        told = reading.command("offsets", "reset", "--to", "earliest")
        assert told.returncode == 0, told.stderr
        reading.serve()
        reading.caught_up()
        reading.ends_well()
    found = [read.value for read in kafka.read_all(bootstrap, results)]
    assert len(found) == len(set(found)) == FEW + MANY


class Read(NamedTuple):
    """The tables at three times, and what was written to the source."""

    first: list[Produced]
    second: list[Produced]
    landed: dict[str, Rows]
    reset: dict[str, Rows]
    replayed: dict[str, Rows]
    results: int  # records of the results topic then
    replays: int  # of those, of the replay
    foreign: dict[str, str]  # what the tables say when the results topic is another, too


@pytest.fixture(scope="module")
def read(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, topic: Topic, tables: Reader
) -> Read:
    folder = tmp_path_factory.mktemp("made-again")
    source = topic("proof", partitions=PARTITIONS)
    results = topic("proof-results")
    settings: dict[str, dict[str, Any]] = {
        "workers": {"processes": 2},
        "delivery": {"results": results},
        "spark": {"trigger": "200ms", "tables": TABLES},
    }
    writer = Writer(bootstrap, folder / "produced")
    with service(folder / "service", bootstrap, [source], settings=settings) as landing:
        landing.serve()
        first = writer.write(source, spread(FEW))
        all_landed(landing, results)
        kafka.make_again(bootstrap, source, PARTITIONS)
        second = writer.write(source, spread(MANY, begin=FEW))
        caught_up(landing, results, FEW + MANY)
        landed = rows(landing, tables)
        assert landing.stop() == 0
        begin_anew(landing, "earliest", "is not written twice (dedupe)")
        landing.serve()
        all_landed(landing, results)
        reset = rows(landing, tables)
        told = landing.command("replay", "--all")
        assert told.returncode == 0, told.stderr
        all_landed(landing, results)
        eventually(lambda: taken_more(landing) == MANY, what="one of the tables takes replays")
        replayed = rows(landing, tables)
        found = kafka.read_all(bootstrap, results)
        kafka.make_again(bootstrap, results, PARTITIONS)
        foreign = eventually(lambda: refusals(landing), timeout_s=60, what="they refuse to go on")
        landing.ends_well()
        begin_anew(landing, "committed", "it is not known how far the table had come")
    replays = sum("kworker-replay" in each.headers for each in found)
    return Read(first, second, landed, reset, replayed, len(found), replays, foreign)


def taken_more(landing: Service) -> int:
    """How many results more one table has taken, to be merged, than the other, without replays."""
    taken = {each["name"]: each["rows"] for each in landing.status()["spark"]["tables"]}
    return int(taken["delta"] - taken["iceberg"])


def begin_anew(landing: Service, where: str, told: str) -> None:
    for table in TABLES:
        ran = landing.command("spark", "reset", "--table", table["name"], "--from", where)
        assert ran.returncode == 0, ran.stderr
        assert told in ran.stdout


def refusals(landing: Service) -> dict[str, str] | None:
    """Of all tables."""
    told = {each["name"]: each["reason"] for each in landing.status()["spark"]["tables"]}
    return told if all("was deleted and made again" in why for why in told.values()) else None


def spread(count: int, begin: int = 0) -> Iterator[New]:
    """By turns over the partitions."""
    for new in numbered(count, keys=10, first=begin):
        yield New(new.identity, new.value, new.key, int(new.identity) % PARTITIONS)


def caught_up(landing: Service, results: str, count: int) -> None:
    """Waits until so many source records have a result, and all of those are in the tables."""

    def sources() -> int:
        found = kafka.read_all(landing.bootstrap, results)
        return len({each.headers[kafka.SOURCE] for each in found})

    eventually(lambda: sources() == count, timeout_s=60, every_s=0.2, what="all have a result")
    landing.caught_up()
    all_landed(landing, results)


def all_landed(landing: Service, results: str) -> None:
    landing.caught_up()
    ends = kafka.ends(landing.bootstrap, results)
    for table in TABLES:
        group = f"{landing.name}.spark.{table['name']}"
        eventually(
            lambda group=group: kafka.committed(landing.bootstrap, group) == ends,  # type: ignore[misc]
            timeout_s=SPARK_S,
            every_s=0.2,
            what=f"{group} is at the end",
        )


def positions(written: list[Produced]) -> Counter[tuple[int, int]]:
    return Counter((record.at[1], record.offset) for record in written)


def rows(landing: Service, tables: Reader) -> dict[str, Rows]:
    return {
        name: Counter(
            (row["source_partition"], row["source_offset"], row["source_timestamp"])
            for row in found
        )
        for name, found in tables.rows(landing.config).items()
    }


def test_a_deduped_table_keeps_and_gains_recreated_topic_rows(
    read: Read,
) -> None:
    """Positions tell nothing apart there: source timestamps do."""
    old, new = positions(read.first), positions(read.second)
    assert old & new == old  # every old position is there again
    for table in read.landed.values():
        assert set(table.values()) == {1}
        assert Counter((at, offset) for at, offset, _ in table) == old + new


def test_a_deduped_table_has_each_reread_result_once(read: Read) -> None:
    """By a reset of its checkpoint, and by a replay of the source."""
    assert read.reset == read.landed
    assert read.replayed == read.landed
    assert read.replays == MANY
    assert read.results >= FEW + 2 * MANY


def test_a_recreated_results_topic_is_not_read_at_old_offsets(read: Read) -> None:
    """The new results below them would never be read; a person says from where."""
    for table, why in read.foreign.items():
        assert why.endswith(
            f"stop the job, then kworker spark reset --table {table} --from earliest"
        )
