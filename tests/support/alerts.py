"""The alerts of etc/ over metrics as they were scraped, judged by Prometheus' own tool."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "etc" / "alerts.yml"
SCRAPER = {"job": "kworker", "instance": "here"}  # labels that Prometheus gives
Series = Mapping[str, float]


class Phase(NamedTuple):
    """So many minutes, in each of which a scrape gives this text."""

    scraped: str
    minutes: int


def promtool(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program = shutil.which("promtool", path=path)
    assert program, "promtool is not installed: `make test` installs it"
    command = [program, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True)


def contradiction(
    folder: Path, phases: Sequence[Phase], fires: Mapping[str, Mapping[str, str]]
) -> str:
    """Says what differs from the alerts that fire in some minute of these phases; "" is nothing.

    `fires` has their labels by name, without those that every alert has.
    """
    minutes = sum(phase.minutes for phase in phases)
    expected = [
        {"labels": _selector({**_firing(name), **labels}), "value": 1}
        for name, labels in fires.items()
    ]
    query = 'max_over_time(ALERTS{alertstate="firing"}[1d])'
    case = {
        "interval": "1m",
        "input_series": _input([(_series(phase.scraped), phase.minutes) for phase in phases]),
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{minutes - 1}m", "exp_samples": expected}
        ],
    }
    file = folder / "scraped.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": [case]}))
    tested = promtool("test", "rules", file)
    return "" if tested.returncode == 0 else tested.stdout + tested.stderr


def _firing(name: str) -> Mapping[str, str]:
    return {**SCRAPER, "alertname": name, "alertstate": "firing"}


def _series(scraped: str) -> Series:
    families = text_string_to_metric_families(scraped)
    found = {
        sample.name + _selector({**sample.labels, **SCRAPER}): sample.value
        for family in families
        for sample in family.samples
    }
    return {"up" + _selector(SCRAPER): 1.0, **found}


def _input(phases: Sequence[tuple[Series, int]]) -> list[dict[str, str]]:
    """In the notation of promtool: a series that a scrape lacks is stale from then on."""
    names = {name: None for series, _ in phases for name in series}
    found = []
    for name in names:
        told = []
        for series, minutes in phases:
            value = series.get(name)
            told.append(f"stale _x{minutes - 1}" if value is None else f"{value:.6f}x{minutes - 1}")
        found.append({"series": name, "values": " ".join(told)})
    return found


def _selector(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
