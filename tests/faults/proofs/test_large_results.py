"""Results of many bytes: batches stay within the memory, and one that did not is made smaller."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.e2e.spark_service import STAMP_MS, Service

pytestmark = pytest.mark.timeout(600)

RESULTS, RESULT_BYTES = 6_000, 25_000
RUNS_MOST = 4
NAMES = ("appended", "once", "latest")
# Spark wants 450 MB at least, unless it is told that this is a test.
TABLES = """
"spark.driver.memory" = "256m"
"spark.testing.reservedMemory" = "67108864"

[[spark.tables]]
name = "appended"
path = "data/appended"
batch_bytes = "8GiB"

[[spark.tables]]
name = "once"
path = "data/once"
dedupe = true
batch_bytes = "8GiB"

[[spark.tables]]
name = "latest"
path = "data/latest"
schema = "id INT, text STRING"
mode = "update"
merge_on = ["id"]
batch_bytes = "8GiB"
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, bootstrap: str) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("large"), bootstrap, TABLES)
    made.create_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(RESULTS):
        value = json.dumps({"id": number % 100, "text": f"{number}".ljust(RESULT_BYTES, "x")})
        headers = [("kworker-source", f"orders/0/{number}/{STAMP_MS}".encode())]
        producer.produce(made.topic, value, partition=number % 4, headers=headers)
        producer.poll(0.1 if number % 1_000 == 999 else 0)
    assert producer.flush(60) == 0
    yield made
    made.close()


def test_a_batch_that_was_too_large_is_made_smaller_until_it_fits(service: Service) -> None:
    """Its range is fixed before it is written, so it would come again, and end Spark, for ever."""
    said = []
    for _ in range(RUNS_MOST):
        job = service.start("--once")
        code = job.ends()
        said.append(job.said)
        if code == 0:
            break
        assert "memory" in job.said.lower()
        assert "fewer results from now on" in json.dumps(service.progress())
    assert code == 0, said
    assert len(said) > 1, "it never ran out of memory: this shows nothing"
    assert any(table["batch_records"] < RESULTS for table in service.progress()["tables"])
    for name in NAMES:
        found = DeltaTable(str(service.folder / "data" / name)).to_pyarrow_table()
        offsets = sorted(found.column("source_offset").to_pylist())
        assert offsets == list(range(RESULTS - 100 if name == "latest" else 0, RESULTS)), name
