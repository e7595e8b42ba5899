"""The metrics of the service, made from its status document, named by Prometheus' conventions."""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)

from kworker.console.source import Document, Snapshot
from kworker.core.pauses import PausedTopics

STATES = ("starting", "waiting", "running", "paused", "draining", "red")
_COUNTERS = {
    "consumed": ("records_consumed", "Records taken from source topics and the requeue topic."),
    "done": ("records_done", "Records that succeeded, and whose results are durable."),
    "failed": ("handler_failures", "Failures of records, also of those that did not run."),
    "retried": ("retries", "Retries written to a delay topic."),
    "duplicates": ("duplicates", "Records skipped because their event was done before."),
    "dropped": ("records_dropped", "Records without a value, which source.tombstones skips."),
    "unguarded": ("unguarded_runs", "Runs without duplicate protection, while Redis was away."),
    "remembered": ("records_remembered", "Redelivered records that an offset map knew as done."),
    "maps_ignored": ("offset_maps_ignored", "Offset maps of commits that were foreign or damaged."),
    "published": (
        "records_published",
        "Results, retries and dead letters written; those of aborted transactions count too.",
    ),
    "commits": ("commits", "Commits of positions that the group accepted."),
    "rebalances": ("rebalances", "Assignments of partitions."),
}
_Row = dict[str, Any]
_WORKER_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("in_hand", "worker_records_in_hand", "Records taken and not settled."),
    ("in_flight", "worker_records_in_flight", "Of the records in hand, those without an outcome."),
    ("oldest_s", "worker_oldest_run_seconds", "How long the oldest run of a handler has lasted."),
    ("heartbeat_age_s", "worker_heartbeat_age_seconds", "Time since the poll thread's last turn."),
    ("rss_bytes", "worker_resident_memory_bytes", "Resident memory of the worker."),
    ("handlers", "worker_handlers", "Runs of handlers that may go on at once."),
    ("utilisation", "worker_utilisation_ratio", "Share of time for which handlers run."),
)
_TABLE_COUNTERS = (
    ("rows", "table_rows", "Rows written since the Spark job started."),
    ("rescued", "table_rescued_rows", "Of these, rows whose result did not fit the schema."),
    ("foreign", "table_foreign_records", "Records of the results topic that are not results."),
)
_TABLE_GAUGES = (
    ("behind", "table_behind_records", "Results that the table does not have yet."),
    ("aside", "table_results_set_aside", "Results on which the table's transform fails."),
    ("batch", "table_last_batch", "The number of the last batch."),
)


class Metrics(CollectorRegistry):
    """Collects the metrics of one snapshot.

    If the service does not answer, there is only one metric: `kworker_up`, with the value 0.
    Counters are totals of the service: they include workers that have ended.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        document = self._snapshot.document
        up = document is not None and not self._snapshot.problem
        yield _gauge("up", "1 if the supervisor answers.", int(up))
        if document is not None and up:
            yield from _service(document)
            yield _paused(document)
            yield from _workers(document["workers"])
            yield from _ends(document)
            yield from _delays(document)
            yield from _spark(document["spark"])


def _service(document: Document) -> Iterator[Metric]:
    names = ("name", "instance", "version")
    labels = ["service", "service_instance", "version"]
    info = GaugeMetricFamily("kworker_info", "The service, as a label.", labels=labels)
    info.add_metric([document[name] for name in names], 1)
    yield info
    states = GaugeMetricFamily("kworker_state", "1 for the present state.", labels=["state"])
    for state in STATES:
        states.add_metric([state], int(state == document["state"]))
    yield states
    yield _gauge("problems", "Problems that the status names.", len(document["reasons"]))
    yield _gauge("uptime_seconds", "Time since the supervisor started.", document["uptime_s"])
    for name, (told, text) in _COUNTERS.items():
        yield CounterMetricFamily(f"kworker_{told}", text, value=document["counters"][name])
    text = "Records that workers made dead letters."
    dead = document["dead_letters"].items()
    yield _family(CounterMetricFamily, "dead_letters", text, "reason", dead)
    text = "How long runs of handlers lasted; a batch is one run. Short runs count with their mean."
    yield _histogram("handler_run_seconds", text, document["runs"])
    text = "How long records waited from their intake to the first run of their handler."
    yield _histogram("queue_seconds", text, document["waits"])
    text = "Transactions that have ended, and how long they lasted."
    yield _by_outcome("transaction_seconds", text, document["transactions"])
    text = "Calls to Redis, and how long they lasted."
    yield _by_outcome("redis_call_seconds", text, document["redis_calls"])
    text = "Time that poll threads spent in rebalances."
    seconds = document["rebalancing_s"]
    yield CounterMetricFamily("kworker_rebalance_seconds", text, value=seconds)
    yield _gauge("records_held", "Records that wait in memory for a retry.", document["held"])
    yield _gauge("suspects", "Records that wait for the isolated process.", document["suspects"])
    lag = document["lag"]
    if lag["records"] is not None:  # a number that is not known is no sample, rather than 0
        yield _gauge(
            "lag_records", "Records beyond those taken, of the whole group.", lag["records"]
        )
        text = "Records at or beyond the committed positions."
        yield _gauge("unfinished_records", text, lag["unfinished"])
    text = "Offsets between the group's positions and the ends of the topic's partitions."
    behind = _by(lag["topics"], "topic", "behind")
    yield _family(GaugeMetricFamily, "topic_behind_records", text, "topic", behind)
    if any(row["partitions"] for row in document["workers"]):
        text = "Age of the oldest unfinished record."
        yield _gauge("oldest_unfinished_seconds", text, lag["age_s"])


def _paused(document: Document) -> Metric:
    """Returns a gauge with a value for each topic: 1 if an operator has paused it, else 0.

    Covers the topics of which a worker has a partition, and those that are paused.
    """
    paused = PausedTopics(frozenset(row["topic"] for row in document["paused"]))
    owned = {topic for row in document["workers"] for topic, _ in row["partitions"]}
    text = "1 while an operator has paused the topic; the topic * stands for all."
    states = [(topic, int(topic in paused)) for topic in sorted(owned | paused.names)]
    return _family(GaugeMetricFamily, "topic_paused", text, "topic", states)


def _histogram(name: str, text: str, row: _Row) -> Metric:
    bounds = [*map(str, row["bounds_s"]), "+Inf"]
    buckets = list(zip(bounds, accumulate(row["counts"]), strict=True))
    return HistogramMetricFamily(f"kworker_{name}", text, buckets=buckets, sum_value=row["sum_s"])


def _by_outcome(name: str, text: str, rows: _Row) -> Metric:
    family = SummaryMetricFamily(f"kworker_{name}", text, labels=["outcome"])
    for outcome, row in rows.items():
        family.add_metric([outcome], row["count"], row["sum_s"])
    return family


def _workers(rows: list[_Row]) -> Iterator[Metric]:
    living = [row for row in rows if row["pid"]]
    for field, name, text in _WORKER_GAUGES:
        yield _family(GaugeMetricFamily, name, text, "worker", _by(living, "slot", field))
    partitions = [(str(row["slot"]), len(row["partitions"])) for row in rows]
    text = "Partitions that the worker has."
    yield _family(GaugeMetricFamily, "worker_partitions", text, "worker", partitions)
    running = [(str(row["slot"]), int(row["phase"] == "running")) for row in rows]
    text = "1 while the worker has joined its group and takes records."
    yield _family(GaugeMetricFamily, "worker_running", text, "worker", running)
    for field, text in (
        ("restarts", "Times that the worker was started again after a death."),
        ("replacements", "Times that the worker was replaced as planned."),
    ):
        yield _family(
            CounterMetricFamily, f"worker_{field}", text, "worker", _by(rows, "slot", field)
        )


def _ends(document: Document) -> Iterator[Metric]:
    text = "Unplanned ends of workers, by exit code or signal."
    deaths = document["deaths"].items()
    yield _family(CounterMetricFamily, "worker_deaths", text, "cause", deaths)
    text = "Planned replacements of workers that have begun, by their reason."
    planned = document["replacements"].items()
    yield _family(CounterMetricFamily, "replacements", text, "reason", planned)


def _delays(document: Document) -> Iterator[Metric]:
    rows = document["delays"]
    waiting = _by(rows, "delay", "waiting")
    text = "Records that wait in a delay topic."
    yield _family(GaugeMetricFamily, "delayed_records", text, "delay", waiting)
    due = [
        (row["delay"], row["next_due_ms"] / 1000) for row in rows if row["next_due_ms"] is not None
    ]
    text = "When the next record of a delay topic is due, in seconds since 1970."
    yield _family(GaugeMetricFamily, "delay_next_due_timestamp_seconds", text, "delay", due)
    process = document["delay"]
    if process["heartbeat_age_s"] is not None:
        text = "Time since the last turn of the delay process."
        yield _gauge("delay_heartbeat_age_seconds", text, process["heartbeat_age_s"])
    yield _gauge("delay_running", "1 while the delay process lives.", int(bool(process["pid"])))


def _spark(spark: _Row) -> Iterator[Metric]:
    if spark["state"] in ("off", "elsewhere"):
        return
    running = int(spark["state"] == "running")
    yield _gauge("spark_running", "1 while the Spark job writes its tables.", running)
    tables = spark["tables"]
    for field, name, text in _TABLE_COUNTERS:
        yield _family(CounterMetricFamily, name, text, "table", _by(tables, "name", field))
    for field, name, text in _TABLE_GAUGES:
        yield _family(GaugeMetricFamily, name, text, "table", _by(tables, "name", field))
    running_tables = [(str(row.get("name")), int(row.get("state") == "running")) for row in tables]
    text = "1 while the query of the table runs."
    yield _family(GaugeMetricFamily, "table_running", text, "table", running_tables)


def _by(rows: Iterable[_Row], label: str, field: str) -> list[tuple[str, float]]:
    """Returns each row's values of `label` and `field`; leaves out rows without a known `field`."""
    return [(str(row[label]), row[field]) for row in rows if row.get(field) is not None]


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"kworker_{name}", text, value=value)


def _family(
    kind: Callable[..., CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Iterable[tuple[str, float]],
) -> Metric:
    family = kind(f"kworker_{name}", text, labels=[label])
    for labelled, value in values:
        family.add_metric([labelled], value)
    return family
