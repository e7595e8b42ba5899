"""The alerts and the dashboard of etc/ name metrics that exist, and fire when they should."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kworker.console.metrics import Metrics
from kworker.console.source import Snapshot
from tests.support.alerts import ALERTS, ROOT, Phase, contradiction, promtool
from tests.unit.console.documents import document

DASHBOARD = ROOT / "etc" / "grafana.json"
CASES = Path(__file__).with_name("alerts_test.yml")
COUNTS = {"batch": 3, "rows": 12, "behind": 5, "rescued": 1, "foreign": 0, "aside": 0}
SPARK = {"state": "running", "tables": [{"name": "orders", "state": "running", **COUNTS}]}


def exposition(**changed: Any) -> str:
    """The text of a scrape in which each metric has a sample."""
    shown = document(spark=SPARK, **changed)
    return generate_latest(Metrics(Snapshot(shown, 0.0, ""))).decode()


def rules() -> dict[str, dict[str, Any]]:
    """By name."""
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def series_of_cases() -> Iterator[tuple[str, frozenset[str]]]:
    """The name and the labels of each series that a case of the alerts has."""
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for each in case["input_series"]:
            name, _, labels = each["series"].partition("{")
            yield name, frozenset(re.findall(r"(\w+)=", labels))


def firing() -> dict[str, dict[str, str]]:
    """The labels of each alert that a case expects to fire, by the alert's name."""
    cases = yaml.safe_load(CASES.read_text())["tests"]
    samples = [
        sample
        for case in cases
        for query in case["promql_expr_test"]
        for sample in query["exp_samples"]
    ]
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"])) for sample in samples]
    return {each["alertname"]: each for each in labels if each["alertstate"] == "firing"}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> Iterator[str]:
    """Those of the dashboard, with a number in the place of Grafana's own variable."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m")


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size]
        for at, size in (("x", "w"), ("y", "h"))
    )


# -- metrics --------------------------------------------------------------------------


def test_promtool_has_nothing_to_say_about_the_metrics() -> None:
    checked = promtool("check", "metrics", stdin=exposition())
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize("file", [ALERTS, DASHBOARD], ids=lambda file: file.name)
def test_only_metrics_that_exist_are_named(file: Path) -> None:
    """An alert on a metric that is not there never fires, and says nothing about it."""
    there = set(re.findall(r"^(kworker_\w+)", exposition(), re.MULTILINE))
    named = set(re.findall(r"\bkworker_\w+", file.read_text()))
    assert named
    assert named - there == set()


# -- alerts ---------------------------------------------------------------------------


def test_the_alerts_are_rules_of_prometheus() -> None:
    checked = promtool("check", "rules", ALERTS)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_alerts_fire_when_they_should_and_not_otherwise() -> None:
    """Not at a rolling restart, for example."""
    tested = promtool("test", "rules", CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    assert firing().keys() == rules().keys()


def test_the_cases_have_series_that_the_console_has() -> None:
    """With its labels, and those that Prometheus gives; `up` is Prometheus' own."""
    scraped = {("up", frozenset[str]())} | {
        (sample.name, frozenset(sample.labels))
        for family in text_string_to_metric_families(exposition())
        for sample in family.samples
    }
    own = {(name, labels - {"job", "instance"}) for name, labels in series_of_cases()}
    assert own - scraped == set()


def test_nothing_fires_for_a_service_that_is_well(tmp_path: Path) -> None:
    """Each alert looks at metrics as the console has them, all at the same time."""
    assert contradiction(tmp_path, [Phase(exposition(), 180)], {}) == ""


def test_a_service_that_is_red_pages(tmp_path: Path) -> None:
    well, red = (exposition(reasons=[text]) if text else exposition() for text in ("", "no broker"))
    fires = {"KworkerRed": {"severity": "page"}}
    assert contradiction(tmp_path, [Phase(well, 10), Phase(red, 20)], fires) == ""
    assert "KworkerRed" in contradiction(tmp_path, [Phase(well, 10), Phase(red, 20)], {})


def test_an_alert_tells_whom_it_wakes_and_what_to_type() -> None:
    for name, rule in rules().items():
        assert rule["labels"]["severity"] in ("page", "ticket"), name
        assert rule["annotations"].keys() == {"summary", "description"}, name
        assert "`kworker " in rule["annotations"]["description"], name


def test_the_text_of_an_alert_uses_labels_that_it_has() -> None:
    """Prometheus writes nothing in the place of a label that is missing."""
    labels = firing()
    for name, rule in rules().items():
        used = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
        assert set(used) - labels[name].keys() == set(), name


# -- dashboard ------------------------------------------------------------------------


def test_the_dashboard_has_panels_in_places_of_their_own() -> None:
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
    for one, other in combinations(found, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def test_each_panel_says_what_it_shows_and_in_which_unit() -> None:
    for panel in panels():
        assert panel["title"]
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]


def test_each_panel_has_queries_that_prometheus_understands(tmp_path: Path) -> None:
    assert all(panel["targets"] for panel in panels())
    written = [{"record": "shown", "expr": text} for text in expressions()]
    assert all(rule["expr"] for rule in written)
    file = tmp_path / "shown.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": written}]}))
    checked = promtool("check", "rules", "--lint=none", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
