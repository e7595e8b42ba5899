"""The Spark job on a real Kafka and a real Spark: what lands, what is refused, what survives.

Starting Spark costs seconds, so each story is told once, those that can beside each other, and
each test looks at one claim.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner, Result

from kworker.cli.spark.commands import app
from tests.e2e.conftest import Meanwhile
from tests.support.spark_repair import (
    AGAIN,
    FIRST,
    LOSES,
    MORE,
    MOVED,
    OLDER,
    REFUSED,
    REMADE,
    Repaired,
    repair,
)
from tests.support.spark_service import QUIET, STAMP_MS, Job, Service
from tests.support.tables import Reader, spark_table

pytestmark = pytest.mark.timeout(600)

ORDERS = FIRST
IN_TRANSACTION = 20

ORDER = "order_id BIGINT, customer STRING, total DOUBLE"
WITH_PLACE = f"{ORDER}, at STRUCT<city: STRING>"
REVENUE = {"schema": WITH_PLACE, "transform": "transforms:revenue"}
TABLES = (
    spark_table("orders", schema=WITH_PLACE)
    + spark_table("revenue", **REVENUE, mode="complete")
    + spark_table("latest", **REVENUE, mode="update", merge_on=["customer", "minute"])
    + spark_table("refunds", select="refunds", format="parquet", replays=True)
    + spark_table(
        "last", schema="order_id BIGINT, customer STRING", mode="update", merge_on=["customer"]
    )
    + spark_table("lake", format="iceberg", schema=ORDER)
    + spark_table(
        "ice", format="iceberg", schema=WITH_PLACE, partition_by=["customer"], dedupe=True
    )
    + spark_table(
        "sides",
        schema="order_id BIGINT, total DOUBLE",
        transform="transforms:sides",
        dedupe=True,
    )
)
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
    _send_all_kinds(landed)
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
    repaired: "Future[Repaired]"

    def odd(self, table: str) -> dict[int, dict[str, Any]]:
        """The rows of what was not an ordinary order, by source offset."""
        rows = self.tables[table]
        return {r["source_offset"]: r for r in rows if r.get("source_partition") == 9}


ODD_RESULTS: dict[int, bytes | None] = {
    0: b'{"order_id": 1, "at": {"city": "Ulm"}}',
    1: b'{"order_id": "abc", "total": 2.5}',
    2: b'{"order_id": 2, "coupon": "x"}',
    3: b'{"order_id": 3, "at": {"city": "Ulm", "zip": 1}}',
    4: b'{"order_id": 4}{"order_id": 5}',
    5: b'[{"order_id": 6}]',
    6: b"no json",
    7: None,
}
STRAYS: dict[str | None, bytes] = {
    None: b"x",
    "": b"x",
    "orders/1/2": b"x",
    "orders/a/b/c": b"x",
    f"orders/1/2/{2**63}": b"x",
}


@pytest.fixture(scope="module")
def landed(begun: Begun, tables: Reader, meanwhile: Meanwhile) -> Landed:
    made, job = begun.landed
    assert job.ends() == 0, job.said
    told, rows = made.progress(), tables.rows(made.file)
    lag = {table["name"]: made.lag(table["name"]) for table in told["tables"]}
    verb = ["status", "--config", str(made.file)]
    status = CliRunner().invoke(app, verb), CliRunner().invoke(app, [*verb, "--json"])
    return Landed(job.said, told, rows, lag, status, meanwhile(repair, made, tables))


def _send_all_kinds(made: Service) -> None:
    made.send_orders(0, ORDERS - IN_TRANSACTION)
    made.send_in_transactions(ORDERS - IN_TRANSACTION, IN_TRANSACTION)
    for offset, value in ODD_RESULTS.items():
        made.send(value, f"orders/9/{offset}/{STAMP_MS}")
    for source, value in STRAYS.items():
        made.send(value, source)
    made.send(b'{"order_id": 10}', f"orders/9/10/{STAMP_MS}", index="2")
    made.send(b'{"order_id": 11}', "orders/9/11/-1", table="refunds")
    made.send(b'{"order_id": 12}', f"orders/9/12/{STAMP_MS}", table="refunds", replay="r")
    made.send(b'{"order_id": 13}', f"orders/9/13/{STAMP_MS}", replay="r")
    made.send(b'{"order_id": 14}', f"orders/9/14/{STAMP_MS}")
    made.send(b'{"order_id": 14}', f"orders/9/14/{STAMP_MS}")
    made.flush()


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
    assert "records without a kworker-source header are left out" in landed.said


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


@pytest.fixture(scope="module")
def repaired(landed: Landed) -> Repaired:
    return landed.repaired.result()


def test_a_damaged_checkpoint_is_refused_and_other_tables_go_on(
    repaired: Repaired,
) -> None:
    """Spark would start from most of these, and skip or repeat results without a word."""
    told = {table["name"]: table for table in repaired.refused["tables"]}
    refused = told.pop(REFUSED)
    assert refused["state"] == "failed"
    damage, step = refused["reason"].split(": ")
    assert damage.endswith(f"_checkpoints/{REFUSED}/metadata is missing")
    reset = f"kworker spark reset --table {REFUSED} --from committed"
    assert step == f"stop the job, then {reset}"
    assert {(table["state"], table["behind"]) for table in told.values()} == {("stopped", 0)}
    assert repaired.exit_of_refusal == 1


def test_a_batch_whose_end_was_not_noted_is_written_once(repaired: Repaired) -> None:
    """Spark does a batch again when it was killed between the write and the note of it.

    Delta, Iceberg and Parquet know it by its number, merges know its rows by their keys.
    """
    assert set(repaired.unnoted) == {"orders", "lake", "refunds", "ice", "last", "revenue", "sides"}
    _assert_complete(repaired)
    revenue, files = repaired.tables["revenue"], repaired.old_refunds
    assert sum(row["orders"] for row in revenue) == ORDERS + MORE
    assert sorted(row["source_offset"] for row in files) == [11, 12]


def _assert_complete(repaired: Repaired) -> None:
    """The tables with a row for each result; without `dedupe`, for each time it was sent."""
    again, twice = _source(AGAIN), _source(f"orders/9/14/{STAMP_MS}")  # both were sent twice
    sent = ORDERS + MORE + len(ODD_RESULTS) + 3 + 3
    for table, repeated in (("orders", {again, twice}), ("lake", {again, twice}), ("ice", set())):
        rows = repaired.sources(table)
        assert {source for source, count in rows.items() if count > 1} == repeated
        assert rows.total() == (sent if repeated else sent - 2)


def test_a_reset_says_what_it_does_and_keeps_the_old_checkpoint(repaired: Repaired) -> None:
    """Before it is done, too; Parquet begins anew only in another place."""
    done = {what: ran.returncode for what, ran in repaired.resets.items()}
    assert set(done.values()) == {0}
    dry = repaired.resets["dry run"].stdout
    assert "would be" in dry
    assert "results come again: what comes again, is in the table twice (dedupe = true" in dry
    assert "kept as" not in dry
    assert "kept as" in repaired.resets["orders"].stdout
    assert "come again" not in repaired.resets["orders"].stdout
    assert "is not written twice (dedupe)" in repaired.resets["ice"].stdout
    assert {name: len(kept) for name, kept in repaired.kept.items()} == {
        **dict.fromkeys(("orders", "latest", LOSES), 1),
        **dict.fromkeys(("ice", "refunds"), 0),  # they were gone
        **dict.fromkeys(("lake", "revenue", "sides"), 0),  # they are in use
    }


def test_a_table_that_was_reset_holds_every_result_once(repaired: Repaired) -> None:
    """From where it stood; with dedupe, with keys, and in another place from the beginning."""
    _assert_complete(repaired)
    totals = {(row["customer"], row["minute"][14:16]): row for row in repaired.tables["latest"]}
    counts = {at: row["orders"] for at, row in totals.items()}
    orders = Counter((f"c{number % 2}", f"{14 + number % 3}") for number in range(ORDERS + MORE))
    assert counts == orders + Counter({("c0", "14"): 2})
    assert sorted(row["source_offset"] for row in repaired.tables["refunds"]) == [11, 12]


def _source(header: str) -> tuple[Any, ...]:
    topic, partition, offset, millis = header.split("/")
    stamp = datetime.fromtimestamp(int(millis) / 1000, UTC)
    return topic, int(partition), int(offset), f"{stamp:%Y-%m-%dT%H:%M:%S}.{int(millis) % 1000:03}Z"


def test_a_source_topic_that_was_made_again_has_new_results(repaired: Repaired) -> None:
    """Replayed from 0, its positions are those of before: `dedupe` keeps both, by their times."""
    rows = {
        row["source_timestamp"]: row["order_id"] for row in repaired.tables["ice"] if _is_0(row)
    }
    assert [rows[_source(header)[-1]] for header in (OLDER, AGAIN, REMADE)] == [-1, 0, 7000]


def _is_0(row: dict[str, Any]) -> bool:
    return _at(row) == (0, 0)


def test_an_update_keeps_the_latest_of_a_key_whenever_it_comes(repaired: Repaired) -> None:
    """A result of an older event, alone in a later batch, must not put its value back."""
    rows = {row.get("customer"): row["order_id"] for row in repaired.tables["last"]}
    # Of each partition the last, and of those the one of the latest time: 149 of partition 1
    # came after 119, which was later than all of that one, and was followed by 147 in its own.
    # The older event, without a customer, was to replace 14.
    assert rows == {"c0": 146, "c1": 149, None: 14}


def test_expired_unread_results_are_told_and_other_tables_go_on(repaired: Repaired) -> None:
    """`failOnDataLoss` stays true: a gap is a person's decision, with the command to type."""
    told = {table["name"]: table for table in repaired.meanwhile["tables"]}
    lost = repaired.lost
    assert lost.startswith("Kafka no longer has results that the table lacks (")
    assert f".results-{QUIET}" in lost
    assert lost.endswith(f"kworker spark reset --table {LOSES} --from committed")
    assert {name for name, table in told.items() if table["behind"]} == {LOSES, MOVED}


def test_a_moved_table_goes_on_only_after_a_reset(repaired: Repaired) -> None:
    """Else a new path, as for other columns, would hold what came after it, and look complete."""
    told = {table["name"]: table for table in repaired.meanwhile["tables"]}
    assert told[MOVED]["state"] == "failed"
    assert "revenue continues a table that is not at " in told[MOVED]["reason"]
    assert told[MOVED]["reason"].endswith("kworker spark reset --table revenue --from earliest")


def test_files_are_compacted_while_no_job_writes(repaired: Repaired) -> None:
    """In a local folder two commits at once do not exclude each other: a batch could be lost."""
    found = {table["table"]: table for table in json.loads(repaired.compacted.stdout)}
    for name in ("orders", "lake"):
        assert found[name]["removed"] > found[name]["added"] > 0
    for name, why in (
        ("refunds", "Parquet has no transaction"),
        ("revenue", "each batch writes it anew"),
    ):
        assert why in found[name]["refused"]
    assert repaired.compacted.returncode == 0
    _assert_complete(repaired)


def test_nothing_else_writes_beside_the_running_job(repaired: Repaired) -> None:
    """Neither a compaction nor a reset; who holds the lease is told."""
    for ran in (repaired.held, repaired.uncompacted):
        assert ran.returncode == 73
        assert "the Spark job runs as process" in ran.stderr
