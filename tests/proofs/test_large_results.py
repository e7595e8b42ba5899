"""Results of many bytes: batches stay within the memory, and one that did not is made smaller."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.support.spark_service import SLOW_S, STAMP_MS, Job, Service
from tests.support.tables import spark_table
from tests.support.waiting import eventually

RESULTS, RESULT_BYTES = 6_000, 25_000
MANY = int(os.environ.get("PROOF_LARGE_RESULTS", "16000"))  # 80,000 are 2 GB
RUNS_MOST = 4
pytestmark = pytest.mark.timeout(1200 + MANY // 50)
NAMES = ("appended", "once", "latest")
# Spark wants 450 MB at least, unless it is told that this is a test.
LITTLE = """
"spark.driver.memory" = "256m"
"spark.testing.reservedMemory" = "67108864"
"""


@pytest.fixture
def little(tmp_path: Path, bootstrap: str) -> Iterator[Service]:
    """Memory, and batches without a bound."""
    yield from _filled(tmp_path, bootstrap, LITTLE + _tables(batch_bytes="8GiB"), RESULTS)


@pytest.fixture
def usual(tmp_path: Path, bootstrap: str) -> Iterator[Service]:
    """Memory and bounds."""
    yield from _filled(tmp_path, bootstrap, _tables(), MANY)


def _tables(**more: str) -> str:
    merged = {"schema": "id INT, text STRING", "mode": "update"}
    return (
        spark_table("appended", **more)
        + spark_table("once", dedupe=True, **more)
        + spark_table("latest", merge_on=["id"], **merged, **more)
    )


def _filled(folder: Path, bootstrap: str, tables: str, results: int) -> Iterator[Service]:
    made = Service(folder, bootstrap, tables)
    made.create_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(results):
        value = json.dumps({"id": number % 100, "text": f"{number}".ljust(RESULT_BYTES, "x")})
        headers = [("kworker-source", f"orders/0/{number}/{STAMP_MS}".encode())]
        producer.produce(made.topic, value, partition=number % 4, headers=headers)
        producer.poll(0.1 if number % 1_000 == 999 else 0)
    assert producer.flush(60) == 0
    yield made
    made.close()


def test_a_batch_too_large_for_memory_is_made_smaller(little: Service) -> None:
    """Its range is fixed before it is written, so it would come again, and end Spark, for ever."""
    said = []
    for _ in range(RUNS_MOST):
        job = little.start("--once")
        code = job.ends()
        said.append(job.said)
        if code == 0:
            break
        assert "memory" in job.said.lower()
        assert "fewer results from now on" in json.dumps(little.progress())
    assert code == 0, said
    assert len(said) > 1, "it never ran out of memory: this shows nothing"
    assert any(table["batch_records"] < RESULTS for table in little.progress()["tables"])
    _check(little, RESULTS)


def test_many_bytes_are_taken_in_portions_that_fit(usual: Service) -> None:
    """By a sample of what waits, before the first batch: no restart, and the usual memory."""
    job = usual.start("--once")
    told = eventually(lambda: _portions(usual), timeout_s=SLOW_S)
    assert all(portion < MANY for portion in told), told
    while job.process.poll() is None:  # as long as it goes on, however slow the machine is
        _await_more(usual, job)
    assert job.process.returncode == 0, job.said
    _check(usual, MANY)


def _await_more(service: Service, job: Job) -> None:
    """Waits for more rows, or the job's end."""
    before = _rows(service)
    try:
        eventually(
            lambda: _rows(service) != before or job.process.poll() is not None, timeout_s=SLOW_S
        )
    except AssertionError as error:
        error.add_note(f"{before} rows, and no more; the job said: {job.said}")
        raise


def _rows(service: Service) -> list[int]:
    return [table["rows"] for table in service.progress()["tables"]]


def _portions(service: Service) -> list[int]:
    """How many results a batch of each table takes, once all have begun."""
    told = [table["batch_records"] for table in service.progress()["tables"]]
    return told if all(told) else []


def _check(service: Service, results: int) -> None:
    for name in NAMES:
        found = DeltaTable(str(service.folder / "data" / name))
        offsets = sorted(
            found.to_pyarrow_table(columns=["source_offset"])["source_offset"].to_pylist()
        )
        assert offsets == list(range(results - 100 if name == "latest" else 0, results)), name
