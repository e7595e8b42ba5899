"""The Spark job on a real Kafka and a real Spark: what lands, and what is refused.

Starting Spark costs seconds, so each story is told once, those that can beside each other, and
each test looks at one claim.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner, Result

from kworker.cli.spark.commands import app
from tests.support.spark_landing import (
    ODD_RESULTS,
    ORDERS,
    STRAYS,
    TABLES,
    send_all_kinds,
)
from tests.support.spark_service import Job, Service
from tests.support.tables import Reader, spark_table

pytestmark = pytest.mark.timeout(600)

MISTAKEN = (
    spark_table("a", schema="order_id BIGINT customer")
    + spark_table("b", transform="transforms:broken")
    + spark_table("c", transform="transforms:nothing")
    + spark_table("d", transform="no_such_module:f")
)

Build = Callable[[str, str], Service]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, bootstrap: str) -> Iterator[Build]:
    """Makes services with given tables; their jobs are gone at the end."""
    made: list[Service] = []

    def build(name: str, tables: str) -> Service:
        made.append(Service(tmp_path_factory.mktemp(name), bootstrap, tables))
        return made[-1]

    yield build
    for each in made:
        each.close()


class Begun(NamedTuple):
    """The stories, begun together: much of each is waiting."""

    landed: tuple[Service, Job]
    mistaken: tuple[Service, Job]


@pytest.fixture(scope="module")
def begun(service: Build) -> Begun:
    landed = service("landed", TABLES)
    landed.create_topic()
    send_all_kinds(landed)
    mistaken = service("mistaken", MISTAKEN)
    return Begun(
        (landed, landed.start("--once")),
        (mistaken, mistaken.start("--once")),
    )


class Landed(NamedTuple):
    """The first story: results of every kind, one run, and what stood in the tables after."""

    said: str
    progress: dict[str, Any]
    tables: dict[str, list[dict[str, Any]]]
    lag: dict[str, int]
    status: tuple[Result, Result]

    def odd(self, table: str) -> dict[int, dict[str, Any]]:
        """The rows of what was not an ordinary order, by source offset."""
        rows = self.tables[table]
        return {r["source_offset"]: r for r in rows if r.get("source_partition") == 9}


@pytest.fixture(scope="module")
def landed(begun: Begun, tables: Reader) -> Landed:
    made, job = begun.landed
    assert job.ends() == 0, job.said
    told, rows = made.progress(), tables.rows(made.file)
    lag = {table["name"]: made.lag(table["name"]) for table in told["tables"]}
    verb = ["status", "--config", str(made.file)]
    status = CliRunner().invoke(app, verb), CliRunner().invoke(app, [*verb, "--json"])
    return Landed(job.said, told, rows, lag, status)


def test_a_row_holds_its_source_and_the_schemas_fields(landed: Landed) -> None:
    """Rows of every table format begin with the columns of their source."""
    for table in ("orders", "ice"):
        row = landed.odd(table)[0]
        assert list(row)[:6] == [*_LEADING, "key"]
        assert row["source_topic"] == "orders"
        assert row["source_timestamp"] == "2023-11-14T22:14:00.000Z"
        assert (row["source_index"], row["key"]) == (0, "k")
        assert (row["order_id"], row["at"]) == (1, {"city": "Ulm"})
        assert "_rescued" not in row  # NULL
    assert landed.odd("orders")[10]["source_index"] == 2


_LEADING = [
    "source_topic",
    "source_partition",
    "source_offset",
    "source_index",
    "source_timestamp",
]


def test_a_result_that_does_not_fit_keeps_its_whole_text(landed: Landed) -> None:
    """A table must not lose a part of a result; the parts that fit are in their columns, too."""
    for table in ("orders", "ice"):
        odd = landed.odd(table)
        kept = {offset: row.get("_rescued") for offset, row in odd.items() if offset in ODD_RESULTS}
        misfits = {offset: value.decode() for offset, value in ODD_RESULTS.items() if value}
        assert kept == {**misfits, 0: None, 7: None}
        assert (odd[1].get("order_id"), odd[1]["total"]) == (None, 2.5)
        assert odd[2]["order_id"] == 2
    assert _told(landed, "orders")["rescued"] == 6


def test_a_table_takes_selected_results_and_replays_if_wanted(landed: Landed) -> None:
    """`select`, `replays`, and a table without a schema."""
    refunds = landed.odd("refunds")
    assert set(refunds) == {11, 12}
    assert refunds[11]["value"] == '{"order_id": 11}'
    assert "source_timestamp" not in refunds[11]  # the record had none
    assert set(landed.odd("orders")) == {*ODD_RESULTS, 10, 14}
    assert len(landed.tables["orders"]) == ORDERS + len(ODD_RESULTS) + 3


def test_records_of_others_on_the_topic_are_counted_and_left_out(landed: Landed) -> None:
    """A forged header must not stop the table, nor a forged time overflow it."""
    told = _told(landed, "orders")
    assert (told["foreign"], told["rows"]) == (len(STRAYS), ORDERS + len(ODD_RESULTS) + 3)
    assert "without a valid kworker-source header" in landed.said


def test_a_transform_makes_a_table_of_its_own(landed: Landed) -> None:
    """Revenue by customer and minute, rewritten as a whole and merged: the same table."""
    for table in ("revenue", "latest"):
        rows = landed.tables[table]
        assert sum(row["orders"] for row in rows) == ORDERS
        assert {row["customer"] for row in rows} == {"c0", "c1"}
        assert len(rows) == 2 * 3
        assert all(row["orders"] == ORDERS / 6 for row in rows)
        assert all(row["revenue"] == row["orders"] * 0.5 for row in rows)


def test_dedupe_takes_a_repeated_result_once(landed: Landed) -> None:
    """At least once in the topic, once in the table; without it, both stand there."""
    repeated = {
        table: sum(1 for row in landed.tables[table] if _at(row) == (9, 14))
        for table in ("ice", "orders")
    }
    assert repeated == {"ice": 1, "orders": 2}


def test_dedupe_keeps_all_that_a_transform_makes_of_a_result(landed: Landed) -> None:
    """They share a source; of one that came twice, what was made of either stands there."""
    sides = Counter((_at(row), row["side"]) for row in landed.tables["sides"])
    assert set(sides.values()) == {1}
    places = {_at(row) for row in landed.tables["ice"]}
    assert set(sides) == {(at, side) for at in places for side in ("debit", "credit")}


def _at(row: dict[str, Any]) -> tuple[int, int]:
    return row["source_partition"], row["source_offset"]


def test_progress_is_told_in_a_file_and_to_the_tables_group(landed: Landed) -> None:
    """Lag tools see a consumer group like any other, and transactions leave none behind."""
    told = landed.progress
    assert (told["state"], told["reason"]) == ("stopped", "")
    assert {table["behind"] for table in told["tables"]} == {0}
    assert landed.lag == dict.fromkeys(landed.tables, 0)


def test_status_shows_what_the_job_told_last(landed: Landed) -> None:
    """Also when no job runs, as then."""
    shown, told = landed.status
    assert shown.exit_code == 0
    assert re.search(r"orders +stopped +0 +131 +6 +0", shown.output)
    assert json.loads(told.output) == landed.progress


def _told(landed: Landed, table: str) -> dict[str, Any]:
    found = landed.progress["tables"]
    return next(entry for entry in found if entry["name"] == table)


def test_schema_and_transform_mistakes_are_told_a_line_each(begun: Begun) -> None:
    """Restarting cannot help: exit 78, and no traceback."""
    made, job = begun.mistaken
    assert job.ends() == 78
    lines = [line for line in job.said.splitlines() if line.startswith("kworker: ")]
    assert lines[0].startswith("kworker: spark.tables[a].schema: [PARSE_SYNTAX_ERROR]")
    assert lines[1].startswith("kworker: spark.tables[b].transform: transforms:broken raised")
    assert "no_such_column" in lines[1]
    assert lines[2] == (
        "kworker: spark.tables[c].transform: transforms:nothing returned NoneType, not a DataFrame"
    )
    assert lines[3].startswith("kworker: spark.tables[d].transform: cannot import no_such_module")
    assert "Traceback" not in job.said
    assert made.progress()["state"] == "failed"
