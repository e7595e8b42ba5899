"""The Spark job and its JVM are killed, stopped and changed: one table holds each result once."""

import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import psutil
import pytest

from tests.support.spark_service import SLOW_S, Job, Service
from tests.support.tables import Reader, spark_table
from tests.support.waiting import eventually

PLAIN = spark_table("orders", schema="order_id BIGINT")


class Survived(NamedTuple):
    """What was seen of one table, through every way of dying in the middle of a batch."""

    waited: dict[str, Any]
    standby: dict[str, Any]
    still: dict[str, Any]  # while the JVM of a killed job was there
    jvm_of_killed: psutil.Process
    exit_without_jvm: int
    failed: dict[str, Any]
    exit_on_term: int
    exit_on_change: int
    said_on_change: str
    rows: list[dict[str, Any]]


SENT = 30_000
POLLS_S = 2.5  # in which a standby looks twice


@pytest.fixture(scope="module")
def survived(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, tables: Reader
) -> Iterator[Survived]:
    made = Service(tmp_path_factory.mktemp("survived"), bootstrap, PLAIN)
    yield _survive(made, tables)
    made.close()


def _survive(made: Service, tables: Reader) -> Survived:
    first = made.start()
    waited = eventually(lambda: _reason(made, "state", "does not exist"), timeout_s=SLOW_S)
    second = made.start(KWORKER_STATE_DIR=str(made.folder / "other"))
    standby = eventually(lambda: _reason(made, "other", "holds"), timeout_s=SLOW_S)
    made.create_topic()
    made.send_orders(0, SENT // 3)
    open_batch = _await_open_batch(made)
    jvm_of_first = first.jvm()
    jvm_of_first.suspend()
    first.kill()
    still = eventually(partial(_told_after, made, "other", time.time() + POLLS_S))
    jvm_of_first.resume()
    made.send_orders(SENT // 3, SENT // 3)
    _await_open_batch(made, after=open_batch)
    second.jvm().kill()
    code = second.ends()
    failed = made.progress("other")
    made.file.write_text(made.file.read_text().replace("BIGINT", "BIGINT, customer STRING"))
    third = made.start()
    made.send_orders(2 * SENT // 3, SENT // 3)
    eventually(lambda: _complete(made, third), timeout_s=SLOW_S)
    third.process.send_signal(signal.SIGTERM)
    stopped = third.ends()
    rows = tables.rows(made.file)["orders"]
    made.file.write_text(made.file.read_text().replace("BIGINT", "STRING"))
    changed = made.start("--once")
    refused = changed.ends()
    return Survived(
        waited, standby, still, jvm_of_first, code, failed, stopped, refused, changed.said, rows
    )


def _told_after(made: Service, state_dir: str, moment_s: float) -> dict[str, Any] | None:
    told = made.progress(state_dir)
    return told if told["updated"] > moment_s * 1000 else None


def _reason(made: Service, state_dir: str, text: str) -> dict[str, Any] | None:
    told = made.progress(state_dir)
    return told if text in told["reason"] else None


def _await_open_batch(made: Service, after: int = -1) -> int:
    """Until a later batch has begun and is not committed, as the checkpoint tells."""
    checkpoint = made.folder / "data" / "_checkpoints" / "orders"

    def batches(folder: str) -> set[int]:
        return {int(file.name) for file in (checkpoint / folder).glob("[0-9]*")}

    def begun() -> set[int]:
        return {b for b in batches("offsets") - batches("commits") if b > after}

    return max(eventually(begun, timeout_s=SLOW_S, every_s=0.002))


def _complete(made: Service, job: Job) -> bool:
    told = made.progress()
    behind = {table["behind"] for table in told["tables"]}
    return told["pid"] == job.process.pid and behind == {0}


def test_a_missing_topic_is_waited_for_and_named(survived: Survived) -> None:
    """The reason names the command that creates it."""
    assert survived.waited["state"] == "starting"
    assert survived.waited["reason"].endswith("kworker topics create")


def test_a_second_job_on_the_same_checkpoints_stands_by(survived: Survived) -> None:
    """Two would corrupt them; this one took over when the first was killed."""
    assert survived.standby["state"] == "standby"
    assert survived.failed["tables"][0]["name"] == "orders"


def test_a_standby_waits_for_the_jvm_of_a_killed_job(
    survived: Survived,
) -> None:
    """What it has in hand it would write beside its successor. It is named, not who is dead."""
    assert survived.still["state"] == "standby"
    assert survived.still["reason"].startswith(f"process {survived.jvm_of_killed.pid} on ")
    assert ", the JVM of a job that is gone, holds " in survived.still["reason"]


def test_a_jvm_does_not_outlive_its_job(survived: Survived) -> None:
    """It would write on, beside its successor."""
    eventually(lambda: not survived.jvm_of_killed.is_running(), timeout_s=30)


def test_a_job_ends_when_its_jvm_is_killed(survived: Survived) -> None:
    """The supervisor starts it again; a job without a JVM could only look alive."""
    assert survived.exit_without_jvm == 1
    assert survived.failed["state"] == "failed"
    assert survived.failed["reason"] == (
        "Spark's JVM has ended (signal 9), so the job ends; its supervisor starts it again"
    )


def test_every_result_is_there_once_after_all_kills(survived: Survived) -> None:
    """Delta takes each batch once, by the number that the checkpoint gives it."""
    orders = [row["order_id"] for row in survived.rows]
    assert len(orders) == SENT
    assert sorted(orders) == list(range(SENT))


def test_a_column_added_to_the_schema_is_added_to_the_table(survived: Survived) -> None:
    """Rows from before the last start hold NULL in the new column."""
    customers = {row["order_id"]: row.get("customer") for row in survived.rows}
    assert customers[0] is None
    assert {customers[order] for order in range(2 * SENT // 3, SENT)} == {"c0", "c1"}


def test_a_schema_change_is_refused_with_the_reset_command(survived: Survived) -> None:
    """The old rows could not be read as the new ones."""
    assert survived.exit_on_change == 78
    told = survived.said_on_change.splitlines()
    [line] = [line for line in told if line.startswith("kworker: ")]
    assert line == (
        "kworker: spark.tables[orders].schema: column order_id is bigint in the table, but string"
        " in the rows: change it back, or name another path, and fill that with kworker spark reset"
        " --table orders --from earliest"
    )


def test_term_ends_the_job_in_order(survived: Survived) -> None:
    """Exit 0: nothing failed."""
    assert survived.exit_on_term == 0
