"""docs/metrics.md has each metric of the console, and each alert of etc/alerts.yml."""

from typing import NamedTuple

from kworker.console.metrics import Metrics
from kworker.console.source import Snapshot
from tests.unit.console.documents import document
from tests.unit.console.test_alerts import SPARK, rules
from tests.unit.docs.pages import page, rows, spans

TEXT = page("metrics.md")
METRICS = rows(TEXT, "metric")
UNITS = ("seconds", "bytes")


class MetricRow(NamedTuple):
    """The type and the labels of a metric."""

    kind: str
    labels: frozenset[str]


def collected() -> dict[str, MetricRow]:
    """Returns the metrics of the console, by the names that queries have for them."""
    found = {}
    for family in Metrics(Snapshot(document(spark=SPARK), 0.0, "")).collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        [labels] = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        found[name] = MetricRow(family.type, labels)
    return found


def test_each_metric_is_described_with_its_type_and_labels() -> None:
    described = {
        spans(name)[0]: MetricRow(kind, frozenset(spans(labels)))
        for name, kind, _, labels, _ in METRICS
    }
    assert described == collected()


def test_each_unit_is_that_of_the_name() -> None:
    for name, _, unit, *_ in METRICS:
        named = spans(name)[0].removesuffix("_total")
        in_name = [each for each in UNITS if named.endswith(each)]
        assert [each for each in UNITS if unit.startswith(each)] == in_name, name


def test_each_alert_is_described_with_its_severity_and_time() -> None:
    described = {
        spans(name)[0]: (severity, time) for name, severity, time, *_ in rows(TEXT, "alert")
    }
    assert described == {
        name: (rule["labels"]["severity"], rule.get("for", "0m")) for name, rule in rules().items()
    }
