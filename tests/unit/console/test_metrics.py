"""The metrics say what the status says, in names and units that Prometheus' conventions ask for."""

import math

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kworker.console.metrics import Metrics
from kworker.console.source import Document, Snapshot
from tests.unit.console.documents import document, worker

TABLE = {"name": "orders", "batch": 3, "rows": 12, "behind": 5, "rescued": 1, "foreign": 0}
SPARK = {"state": "running", "tables": [{**TABLE, "aside": 0, "state": "running"}]}


def samples(shown: Document | None, problem: str = "") -> dict[tuple[str, ...], float]:
    """By name and the values of labels, as a scrape reads them."""
    text = generate_latest(Metrics(Snapshot(shown, 0.0, problem))).decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_each_number_of_the_status_is_a_metric() -> None:
    found = samples(document(spark=SPARK))
    assert found["kworker_up",] == 1
    assert found["kworker_info", "orders", "test", "0.1.0"] == 1
    assert (found["kworker_state", "running"], found["kworker_state", "red"]) == (1, 0)
    assert found["kworker_records_consumed_total",] == 10
    assert found["kworker_dead_letters_total", "rejected"] == 4
    assert found["kworker_dead_letters_total", "exhausted"] == 10
    buckets = [
        found["kworker_handler_run_seconds_bucket", bound] for bound in ("0.01", "0.1", "+Inf")
    ]
    assert buckets == [5, 7, 8]
    assert found["kworker_handler_run_seconds_count",] == 8
    assert found["kworker_handler_run_seconds_sum",] == 0.75
    assert found["kworker_queue_seconds_bucket", "0.1"] == 7
    assert (found["kworker_queue_seconds_count",], found["kworker_queue_seconds_sum",]) == (9, 1.5)
    assert found["kworker_transaction_seconds_count", "committed"] == 20
    assert found["kworker_transaction_seconds_sum", "aborted"] == 0.5
    assert found["kworker_redis_call_seconds_count", "failed"] == 2
    assert found["kworker_redis_call_seconds_sum", "answered"] == 0.02
    assert found["kworker_rebalance_seconds_total",] == 1.25
    assert found["kworker_rebalances_total",] == 22
    assert found["kworker_worker_handlers", "0"] == 8
    assert found["kworker_worker_utilisation_ratio", "1"] == 0.25
    assert found["kworker_worker_records_in_hand", "1"] == 3
    assert found["kworker_worker_resident_memory_bytes", "0"] == 60 << 20
    assert found["kworker_worker_restarts_total", "0"] == 1
    assert found["kworker_worker_deaths_total", "SIGKILL"] == 2
    assert found["kworker_replacements_total", "memory"] == 1
    assert found["kworker_delayed_records", "5s"] == 2
    assert found["kworker_delay_next_due_timestamp_seconds", "5s"] == 1_790_000_000.5
    assert (found["kworker_lag_records",], found["kworker_unfinished_records",]) == (7, 9)
    assert found["kworker_topic_behind_records", "orders.requeue"] == 1
    assert found["kworker_table_rows_total", "orders"] == 12
    assert found["kworker_table_behind_records", "orders"] == 5


def pause(topic: str) -> dict[str, object]:
    return {"topic": topic, "since_ms": 1, "until_ms": None, "by": "me@here"}


def test_each_topic_is_paused_or_not() -> None:
    """Also one whose partitions are all on other hosts, if it is paused by its name."""
    found = samples(document(paused=[pause("payments")]))
    assert found["kworker_topic_paused", "orders"] == 0
    assert found["kworker_topic_paused", "payments"] == 1
    everything = samples(document(paused=[pause("*")], state="paused"))
    assert everything["kworker_topic_paused", "orders"] == 1
    assert everything["kworker_state", "paused"] == 1


def test_what_is_not_known_has_no_sample() -> None:
    """A zero would tell an alert that all is well."""
    dead = worker(1, pid=0, phase="gone", heartbeat_age_s=None)
    lag = {"records": None, "unfinished": None, "age_s": 0.0, "topics": []}
    delay = {"pid": 0, "heartbeat_age_s": None}
    found = samples(document(workers=[worker(0), dead], lag=lag, delay=delay))
    assert ("kworker_lag_records",) not in found
    assert ("kworker_worker_heartbeat_age_seconds", "1") not in found
    assert ("kworker_worker_resident_memory_bytes", "1") not in found
    assert found["kworker_worker_running", "1"] == found["kworker_delay_running",] == 0
    elsewhere = samples(document(spark={"state": "elsewhere", "tables": []}))
    assert not [name for name, *_ in {**found, **elsewhere} if name.startswith("kworker_table")]
    assert ("kworker_spark_running",) not in elsewhere


def test_a_service_that_does_not_answer_is_down_and_nothing_else() -> None:
    assert samples(None, "gone") == {("kworker_up",): 0}
    assert samples(document(), "gone") == {("kworker_up",): 0}


def test_values_are_numbers_and_names_have_units() -> None:
    found = samples(document(spark=SPARK))
    assert all(math.isfinite(value) for value in found.values())
    assert not [name for name, *_ in found if name.endswith(("_ms", "_s", "_mb", "_age"))]
