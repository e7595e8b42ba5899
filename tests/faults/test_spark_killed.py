"""Spark's JVM killed under a running service: workers do not notice, the table is complete."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.harness import kafka
from tests.harness.evidence import gather
from tests.harness.kafka import Writer, numbered
from tests.harness.ledgers import At
from tests.harness.service import Service, named, service
from tests.tables import Reader
from tests.waiting import eventually

Topic = Callable[..., str]

RECORDS = 3_000
SPARK_S = 180.0


def test_a_killed_jvm_is_started_again_and_every_result_is_in_the_table_once(
    tmp_path: Path, bootstrap: str, topic: Topic, results: str, tables: Reader
) -> None:
    """The results topic is the buffer: while there is no Spark, workers go on as before."""
    source = topic("proof", partitions=4)
    settings: dict[str, dict[str, Any]] = {
        "workers": {"processes": 2},
        "delivery": {"results": results},
        "spark": {
            "trigger": "200ms",
            "tables": [{"name": "orders", "path": "data/orders", "schema": "value STRING"}],
        },
    }
    writer = Writer(bootstrap, tmp_path / "produced")
    with service(tmp_path / "service", bootstrap, [source], settings=settings) as landing:
        landing.serve()
        pids = landing.worker_pids()
        writer.write(source, numbered(RECORDS, keys=100))
        eventually(lambda: sum(landed(landing).values()) > 0, timeout_s=SPARK_S, every_s=0.2)
        writer.begin(source, numbered(RECORDS, keys=100, first=RECORDS))
        jvm(landing).kill()
        eventually(lambda: landing.state() == "red", timeout_s=30, every_s=0.01, what="it is told")
        writer.finish()
        landing.caught_up()
        ends = kafka.ends(bootstrap, results)
        eventually(lambda: landed(landing) == ends, timeout_s=SPARK_S, every_s=0.2)
        landing.is_running()
        assert landing.worker_pids() == pids
        assert [row["restarts"] for row in landing.workers().values()] == [0, 0]
        assert landing.stop() == 0
        landing.is_gone()
    found = gather(landing, writer.acked, results)
    assert (found.contradictions(), found.repeated) == ({}, [])
    assert rows(landing, tables) == Counter(record.position for record in writer.acked)


def landed(landing: Service) -> dict[At, int]:
    """How far the table has read the results, by its own group."""
    return kafka.committed(landing.bootstrap, f"{landing.name}.spark.orders")


def jvm(landing: Service) -> psutil.Process:
    """The one that the Spark job started."""
    [found] = named("java", landing.processes())
    return found


def rows(landing: Service, tables: Reader) -> Counter[tuple[str, int, int]]:
    """How often each source position stands in the table, read by another process."""
    return Counter(
        (row["source_topic"], row["source_partition"], row["source_offset"])
        for row in tables.rows(landing.config)["orders"]
    )
