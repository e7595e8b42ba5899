"""Tables that cannot take a result, or none at all, beside others of the same job, which go on."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kworker.jars import cache_folder
from tests.support.spark_service import SLOW_S, STAMP_MS, Service
from tests.support.tables import spark_table
from tests.support.waiting import eventually

RESULTS = 400
BAD = {17, 250}
"""A Python function raises for the first, Spark for the other."""
SCHEMA = "id INT, divisor INT"
TABLES = (
    spark_table("good")
    + spark_table("rows", schema=SCHEMA, transform="failing:checked")
    + spark_table("once", schema=SCHEMA, transform="failing:checked", dedupe=True)
    + spark_table("sums", schema=SCHEMA, transform="failing:sums", mode="complete")
    + spark_table("never", schema=SCHEMA, transform="failing:never")
    + spark_table("priced", schema=SCHEMA, transform="failing:priced")
    + spark_table("forbidden", path="/sys/kworker/forbidden")
    + spark_table("unknown", format="iceberg")
)
TRANSFORMS = """
from pathlib import Path

from pyspark.sql import functions as f


@f.udf("int")
def checked_id(id):
    if id == 17:
        raise ValueError("seventeen is not sold here")
    return id


@f.udf("int")
def none(id):
    raise LookupError("no prices today")


def checked(rows):
    return rows.withColumn("id", checked_id("id")).withColumn("share", f.expr("100 / divisor"))


def sums(rows):
    counts = (f.count("id").alias("n"), f.sum("share").alias("shares"))
    return checked(rows).groupBy("divisor").agg(*counts)


def never(rows):
    return rows.withColumn("price", none("id"))


def priced(rows):
    prices = rows.sparkSession.read.format("delta").load(str(Path(__file__).parent / "prices"))
    return rows.join(prices, "id", "left")
"""


# The table that `priced` reads is not there at first.
UNPRICED = "failing:priced raised an error that may pass: ["
WAITING = {
    "never": "failing:never fails on each of the results that were tried: LookupError: no prices"
    " today",
    "sums": "ValueError: seventeen is not sold here",
}


class Ended(NamedTuple):
    """What the job told while it ran, and its tables when it had stopped."""

    service: Service
    said: str
    told: dict[str, dict[str, Any]]
    reasons: dict[str, str]
    unpriced: dict[str, Any]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, bootstrap: str) -> Iterator[Ended]:
    with closing(Service(tmp_path_factory.mktemp("bad"), bootstrap, TABLES)) as made:
        (made.folder / "failing.py").write_text(TRANSFORMS)
        made.create_topic()
        _send(made, range(RESULTS // 2))
        job = made.start(**_without_iceberg(made.folder / "cache"))
        reasons: dict[str, str] = {}
        eventually(lambda: _done(made, reasons), timeout_s=SLOW_S, every_s=0.2)
        unpriced = eventually(lambda: _unpriced(made), timeout_s=SLOW_S)
        prices = pa.table({"id": pa.array([1, 2], pa.int32()), "price": [10, 20]})
        write_deltalake(str(made.folder / "prices"), prices)
        _send(made, range(RESULTS // 2, RESULTS))
        reasons.clear()
        eventually(lambda: _done(made, reasons, RESULTS), timeout_s=SLOW_S, every_s=0.2)
        eventually(lambda: _tables(made)["priced"]["behind"] == 0, timeout_s=SLOW_S)
        told = _tables(made)
        job.process.send_signal(signal.SIGTERM)
        assert job.ends() == 0, job.said
        yield Ended(made, job.said, told, reasons, unpriced)


def _without_iceberg(cache: Path) -> dict[str, str]:
    """The environment of a job that has no archive of Iceberg's, and no way to one."""
    (cache / "jars").mkdir(parents=True)
    for each in (cache_folder() / "jars").iterdir():
        if "iceberg" not in each.name:
            (cache / "jars" / each.name).symlink_to(each)
    away = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1 -Dhttp.proxyHost=127.0.0.1"
    options = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {away} -Dhttp.proxyPort=1"
    return {"KWORKER_CACHE": str(cache), "JAVA_TOOL_OPTIONS": options}


def _send(service: Service, numbers: range) -> None:
    for number in numbers:
        value = json.dumps({"id": number, "divisor": 0 if number == 250 else 1})
        service.send(value, f"orders/0/{number}/{STAMP_MS}")
    service.flush()


def _tables(service: Service) -> dict[str, dict[str, Any]]:
    return {table["name"]: table for table in service.progress()["tables"]}


def _done(service: Service, reasons: dict[str, str], results: int = RESULTS // 2) -> bool:
    told = _tables(service)
    if not told:
        return False
    on = all(told[name]["behind"] == 0 for name in ("good", "rows", "once"))
    # A table that starts again has no reason for a moment.
    reasons |= {name: table["reason"] for name, table in told.items() if table["reason"]}
    return on and told["good"]["rows"] == results and WAITING.keys() <= reasons.keys()


def _unpriced(service: Service) -> dict[str, Any] | None:
    """What is told about `priced` while it waits for the table that its transform reads."""
    told = _tables(service).get("priced", {})
    return told if told.get("reason", "").startswith(UNPRICED) else None


def _read(service: Service, table: str) -> Any:
    return DeltaTable(str(service.folder / "data" / table)).to_pyarrow_table()


@pytest.mark.parametrize("table", ["rows", "once"])
def test_results_that_fail_a_transform_are_set_aside(ended: Ended, table: str) -> None:
    """Else one result stops a table for ever: its range is planned, and comes again."""
    found = _read(ended.service, table).column("id").to_pylist()
    assert sorted(found) == sorted(set(range(RESULTS)) - BAD)
    assert ended.told[table]["aside"] == len(BAD)


def test_a_failing_aggregate_waits_for_a_person(ended: Ended) -> None:
    """What fails alone may have failed for want of what came before."""
    sums = ended.told["sums"]
    assert (sums["aside"], sums["rows"]) == (0, 0)
    assert ended.reasons["sums"] == WAITING["sums"]


def test_a_result_set_aside_is_kept_with_its_reason(ended: Ended) -> None:
    """A person mends the transform by it; then a reset takes these results, too."""
    files = sorted((ended.service.checkpoint("rows") / "aside").iterdir())
    kept = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [each["source"].split("/")[2] for each in kept] == ["17", "250"]
    assert [json.loads(each["value"])["id"] for each in kept] == [17, 250]
    assert kept[0]["reason"] == "ValueError: seventeen is not sold here"
    assert kept[1]["reason"].startswith("[DIVIDE_BY_ZERO]")
    assert ended.said.count("results are set aside") == 4


def test_each_log_entry_begins_on_its_own_line(ended: Ended) -> None:
    """Spark's stacks were cut off without a line's end, and swallowed what came next."""
    begun = re.findall(r"(.?)(?:\d{4}-\d\d-\d\dT[\d:.]+ spark |\{\"timestamp\")", ended.said)
    assert len(begun) > 10
    assert set(begun) == {""}


def test_a_transform_that_always_fails_sets_nothing_aside(ended: Ended) -> None:
    """All results would be set aside, by and by."""
    assert ended.told["never"]["aside"] == 0
    assert ended.reasons["never"] == WAITING["never"]


def test_a_table_waits_for_what_its_transform_reads(ended: Ended) -> None:
    """Its dependency may be down for a moment, just when the job starts."""
    assert ended.unpriced["state"] == "restarting"
    found = _read(ended.service, "priced").to_pylist()
    assert len(found) == RESULTS
    assert {row["id"]: row["price"] for row in found if row["price"]} == {1: 10, 2: 20}


def test_a_good_table_beside_bad_ones_is_complete(ended: Ended) -> None:
    assert len(_read(ended.service, "good")) == RESULTS


def test_a_place_that_cannot_be_written_is_named_in_a_line(ended: Ended) -> None:
    reason = ended.reasons["forbidden"]
    step = ": let the user that runs the job write there, or name another place"
    assert "Cannot create file:/sys/kworker/forbidden" in reason
    assert reason.endswith(step)


def test_a_table_format_without_an_archive_stops_no_other_table(ended: Ended) -> None:
    told = ended.told["unknown"]
    assert told["state"] == "failed"
    assert told["reason"].startswith("spark.tables[unknown].format: org.apache.iceberg:")
    assert "could not be downloaded" in told["reason"]
    assert told["reason"].endswith("give the job access to the network once, then start it again")
