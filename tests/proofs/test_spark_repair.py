"""The Spark job after damage: what it refuses, and what a person mends with `kworker spark`.

Starting Spark costs seconds, so the story is told once, and each test looks at one claim.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.spark_landing import ODD_RESULTS, ORDERS, TABLES, send_all_kinds
from tests.support.spark_repair import (
    AGAIN,
    LOSES,
    MORE,
    MOVED,
    OLDER,
    REFUSED,
    REMADE,
    Repaired,
    repair,
)
from tests.support.spark_service import QUIET, STAMP_MS, Service
from tests.support.tables import Reader


@pytest.fixture(scope="module")
def repaired(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, tables: Reader
) -> Iterator[Repaired]:
    made = Service(tmp_path_factory.mktemp("landed"), bootstrap, TABLES)
    try:
        made.create_topic()
        send_all_kinds(made)
        job = made.start("--once")
        assert job.ends() == 0, job.said
        yield repair(made, tables)
    finally:
        made.close()


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
    return (row["source_partition"], row["source_offset"]) == (0, 0)


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


def test_a_table_with_expired_results_goes_on_as_advised(repaired: Repaired) -> None:
    """The table itself ends before them: a job that began there would ask for the same again."""
    assert repaired.advised.returncode == 0
    assert "does not exist" in repaired.advised.stdout
    told = {table["name"]: table for table in repaired.afterwards["tables"]}
    assert (told[LOSES]["state"], told[LOSES]["behind"]) == ("stopped", 0)


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
