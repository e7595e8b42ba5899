"""Tables hold what the results held, each of them once: as Spark, DuckDB and pandas read them."""

import base64
import json
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import duckdb
import pandas
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.support import awkward
from tests.support.spark_service import SLOW_S, STAMP_MS, Service
from tests.support.tables import Reader, Rows, spark_table
from tests.support.waiting import eventually

CHANGES, KEYS = 50_000, 1_000
COUNTED = 3_000
BROKEN = "broken"
BYTES = [b"\xff\xfe\x00", b'{"s": "\xe4"}', b"\xed\xa0\x80", b"plain", b""]
COUNTED_ROWS = {"select": "counted", "schema": "group INT, amount BIGINT", "transform": "sums:sums"}
TABLES = (
    spark_table("awkward", schema=" ".join(awkward.SCHEMA.split()))
    + spark_table("complete", select="complete", schema=" ".join(awkward.COMPLETE.split()))
    + spark_table(
        "last", select="changes", schema="id INT, value INT", mode="update", merge_on=["id"]
    )
    + spark_table("sums", **COUNTED_ROWS, mode="complete", dedupe=True)
    + spark_table("running", **COUNTED_ROWS, mode="update", merge_on=["group"], dedupe=True)
    + spark_table("again", **COUNTED_ROWS, mode="complete")
    + spark_table("broken", transform="transforms:broken")
    + spark_table("texts", select="bytes")
    + spark_table("records", select="bytes", transform="sums:records")
)
TRANSFORMS = """
from pyspark.sql import functions as f


def sums(rows):
    return rows.groupBy("group").agg(f.count("*").alias("n"), f.sum("amount").alias("amount"))


def records(rows):
    headers = f.to_json("_record.headers").alias("headers")
    return rows.select("*", "_record.key", "_record.value", headers, "_record.time").drop(
        rows["key"], rows["value"]
    )
"""

Read = Callable[[str, str], Any]


class Landed(NamedTuple):
    """After one run of the job: what it said, and the tables as Spark, DuckDB and pandas do."""

    said: str
    broken: dict[str, Any]
    spark: dict[str, Rows]
    read: dict[str, Read]
    """By reader: the rows of a table, each an object, in the order of a column."""


@pytest.fixture(scope="module")
def landed(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, tables: Reader
) -> Iterator[Landed]:
    made = Service(tmp_path_factory.mktemp("true"), bootstrap, TABLES)
    (made.folder / "sums.py").write_text(TRANSFORMS)
    made.create_topic()
    job = made.start()
    eventually(lambda: _states(made) == {"running"}, timeout_s=SLOW_S)
    _send(made, bootstrap)  # meanwhile, so that batches end anywhere in it
    eventually(lambda: _done(made), timeout_s=SLOW_S, every_s=0.5)
    broken = next(t for t in made.progress()["tables"] if t["name"] == BROKEN)
    job.process.send_signal(signal.SIGTERM)
    assert job.ends() == 0, job.said
    made.file.write_text(
        re.sub(r"\[\[spark.tables\]\]\nname = .broken.\n.*\n.*\n", "", made.file.read_text())
    )
    yield Landed(
        job.said,
        broken,
        tables.rows(made.file),
        {
            "duckdb": lambda table, by: _of_duckdb(_table(made, table), by),
            "pandas": lambda table, by: _of_pandas(_table(made, table), by),
        },
    )
    made.close()


def _states(made: Service) -> set[str]:
    return {table["state"] for table in made.progress()["tables"] if table["name"] != BROKEN}


def _done(made: Service) -> bool:
    names = (table["name"] for table in made.progress()["tables"])
    return all(made.lag(name) == 0 for name in names if name != BROKEN)


def _send(made: Service, bootstrap: str) -> None:
    for number, (_, text, _) in enumerate(awkward.results()):
        made.send(text, f"orders/0/{number}/{STAMP_MS}")
    for number, (_, text, _) in enumerate(awkward.complete()):
        made.send(text, f"orders/0/{number}/{STAMP_MS}", table="complete")
    for number, value in enumerate(BYTES):
        made.send(value, f"orders/5/{number}/{STAMP_MS}", table="bytes")
    made.send(b"late", f"orders/5/9/{2**63 - 1}", table="bytes")
    made.flush()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for source, table, value in [*_changes(), *_counted()]:
        headers = [("kworker-source", source.encode()), ("kworker-table", table.encode())]
        producer.produce(made.topic, json.dumps(value), partition=0, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0


def _changes() -> Iterator[tuple[str, str, dict[str, int]]]:
    """Their stamps are in no order. Some results come twice, the second time much later."""
    chance = random.Random(15)
    again = []
    for offset in range(CHANGES):
        stamp = STAMP_MS + chance.randrange(1_000_000)
        change = (f"orders/1/{offset}/{stamp}", "changes", _change(offset))
        yield change
        if chance.random() < 0.01:
            again.append(change)
    yield from again


def _change(offset: int) -> dict[str, int]:
    return {"id": offset * 7919 % KEYS, "value": offset}


def _counted() -> Iterator[tuple[str, str, dict[str, int]]]:
    """At least once: a third of them comes twice."""
    for again in (1, 3):
        for offset in range(0, COUNTED, again):
            yield f"orders/2/{offset}/{STAMP_MS}", "counted", _amount(offset)


def _amount(offset: int) -> dict[str, int]:
    return {"group": offset % 7, "amount": offset}


def _table(made: Service, name: str) -> DeltaTable:
    return DeltaTable(str(made.folder / "data" / name))


def _of_duckdb(table: DeltaTable, by: str) -> Rows:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    rows = connection.read_parquet(table.file_uris())
    columns = [
        f'epoch_us("{name}") AS "{name}"' if str(type_).startswith("TIMESTAMP") else f'"{name}"'
        for name, type_ in zip(rows.columns, rows.types, strict=True)
    ]
    found = rows.project(", ".join(columns)).order(f'"{by}"')
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def _of_pandas(table: DeltaTable, by: str) -> Rows:
    # Pandas' own integers know no NULL, and would become numbers with a point.
    frame = table.to_pandas(types_mapper=pandas.ArrowDtype).sort_values(by)
    rows: Rows = frame.to_dict("records")
    return [
        {name: None if value is pandas.NA else value for name, value in row.items()} for row in rows
    ]


READERS = pytest.mark.parametrize("reader", ["duckdb", "pandas"])


@READERS
@pytest.mark.parametrize(
    ("table", "sent"), [("awkward", awkward.results()), ("complete", [*awkward.complete()])]
)
def test_each_value_equals_the_result_or_is_rescued(
    landed: Landed, reader: str, table: str, sent: list[awkward.Result]
) -> None:
    rows = landed.read[reader](table, "source_offset")
    assert len(sent) > 250
    assert [row["source_offset"] for row in rows] == list(range(len(sent)))
    wrong = [
        (text[:80], row.get(column), row["_rescued"])
        for row, (column, text, value) in zip(rows, sent, strict=True)
        if row["_rescued"] != (text if value is awkward.LOST else None)
        or (value is not awkward.LOST and _plain(row[column], value) != value)
    ]
    assert wrong == []


def test_spark_reads_the_same(landed: Landed) -> None:
    rows = sorted(landed.spark["awkward"], key=lambda row: int(row["source_offset"]))
    assert [row.get("_rescued") for row in rows] == [
        text if value is awkward.LOST else None for _, text, value in awkward.results()
    ]
    days = [value for value in awkward.FITS["day"].values() if value]
    assert [row["day"] for row in rows if "day" in row] == [day.isoformat() for day in days]


def _plain(value: Any, like: Any) -> Any:
    """What a reader gives, as Python's own; a map may be a list of pairs."""
    if isinstance(value, pandas.Timestamp):
        return int(value.as_unit("us").asm8.view("i8"))
    if isinstance(value, datetime):
        return value.date()
    if isinstance(like, dict) and value is not None:
        return dict(value)
    return value


@READERS
def test_an_update_keeps_the_last_of_each_key_by_offset(landed: Landed, reader: str) -> None:
    expected: dict[int, int] = {}
    for offset in range(CHANGES):
        change = _change(offset)
        expected[change["id"]] = change["value"]
    rows = landed.read[reader]("last", "id")
    assert {row["id"]: row["value"] for row in rows} == expected
    assert len(rows) == KEYS


@READERS
@pytest.mark.parametrize("table", ["sums", "running"])
def test_an_aggregate_counts_each_result_once(landed: Landed, reader: str, table: str) -> None:
    expected: Counter[int] = Counter()
    for offset in range(COUNTED):
        expected[offset % 7] += offset
    rows = landed.read[reader](table, "group")
    assert {row["group"]: row["amount"] for row in rows} == expected
    assert sum(row["n"] for row in rows) == COUNTED


def test_an_aggregate_that_counts_repeats_is_warned_about(landed: Landed) -> None:
    """At least once, and without dedupe: by choice, but not unheard."""
    said = "count it twice: set dedupe = true"
    lines = [line for line in landed.said.splitlines() if said in line]
    assert len(lines) == 1
    assert "again" in lines[0]
    rows = landed.read["duckdb"]("again", "group")
    assert sum(row["n"] for row in rows) == COUNTED + COUNTED // 3


def test_a_table_that_cannot_be_made_stops_no_other(landed: Landed) -> None:
    assert landed.broken["state"] == "failed"
    told = "spark.tables[broken].transform: transforms:broken raised"
    assert landed.broken["reason"].startswith(told)
    assert "the settings of this table are wrong, so it is not written" in landed.said


@READERS
def test_bytes_that_are_no_text_are_kept(landed: Landed, reader: str) -> None:
    rows = landed.read[reader]("texts", "source_offset")[: len(BYTES)]
    for row, value in zip(rows, BYTES, strict=True):
        try:
            expected = (value.decode(), None)
        except UnicodeDecodeError:
            expected = (None, "base64:" + base64.b64encode(value).decode())
        assert (row["value"], row["_rescued"]) == expected


@READERS
def test_a_transform_sees_the_raw_record(landed: Landed, reader: str) -> None:
    rows = landed.read[reader]("records", "source_offset")
    assert [bytes(row["value"]) for row in rows] == [*BYTES, b"late"]
    assert {bytes(row["key"]) for row in rows} == {b"k"}
    names = [[header["key"] for header in json.loads(row["headers"])] for row in rows]
    assert names == [["kworker-source", "kworker-table"]] * len(rows)
    assert all(row["time"] is not None and "_record" not in row for row in rows)


def test_a_result_whose_source_bears_an_impossible_time_has_none(landed: Landed) -> None:
    """It was left out as a stranger's."""
    row = landed.read["duckdb"]("texts", "source_offset")[-1]
    assert (row["value"], row["source_offset"], row["source_timestamp"]) == ("late", 9, None)
