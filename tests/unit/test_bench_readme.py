"""README's figures and the rates of `kworker plan`: of one report, and the rest is kept."""

from pathlib import Path
from typing import Any

import pytest

from bench import readme
from kworker.core import capacity
from tests.unit.support.bench_report import report

SOURCE = Path(capacity.__file__)


def test_only_what_is_marked_in_the_readme_is_replaced() -> None:
    text = f"above\n{readme.BEGIN}\nold\n{readme.END}\nbelow\n"
    made = readme.with_figures(text, report())
    assert made.startswith(f"above\n{readme.BEGIN}\n![")
    assert made.endswith(f"\n{readme.END}\nbelow\n")
    assert "old" not in made
    assert "](docs/performance/rates.svg)\n\n| " in made
    assert "| Quix Streams, no-op | 10,000 | 1.25 × |" in made
    plain = " ".join(made.split())
    conditions = "medians of 5 rounds, or of 1 where no ratio is wanted, at commit `abc1234`."
    assert f"All in one run: {conditions}" in plain
    assert "up to 2,000,000 of them" in plain
    assert "[docs/performance.md](docs/performance.md)" in plain
    assert readme.with_figures(made, report()) == made


def test_a_row_of_the_readme_can_be_read_alone() -> None:
    """In its table other rows stand above it than in the page's."""
    measured = report()
    line = next(each for each in measured["contenders"] if each["name"] == "kworker-decoded")
    line |= {"what": "the same, decoded", "alone": "kworker, JSON and a result"}
    made = readme.with_figures(f"{readme.BEGIN}\n{readme.END}", measured)
    assert "| **kworker, JSON and a result** | " in made
    assert "the same, decoded" not in made


def test_the_rates_to_plan_with_are_those_of_the_readme() -> None:
    """Of one run, with the same three digits, under the same words; all else stays as it is."""
    measured = report() | {"cpus": 4}
    rates = {"kworker-results": 101_449, "kworker-exactly-once": 9_876, "kworker-claims": 54_321}
    for line in measured["contenders"]:
        line["records_per_second"] = rates.get(line["name"], 7)
    old = SOURCE.read_text()
    made = readme.with_rates(old, measured)
    assert made != old
    assert readme.with_rates(made, measured) == made
    found: dict[str, Any] = {"__name__": "made"}
    exec(compile(made, "made", "exec"), found)
    table = readme.with_figures(f"{readme.BEGIN}\n{readme.END}", measured)
    for name, rate in (("RESULTS", 101_000), ("EXACTLY_ONCE", 9_880), ("IDEMPOTENT", 54_300)):
        assert found[name] == (rate, getattr(capacity, name).what)
        assert f"| **kworker, {found[name].what}** | {rate:,} |" in table
    assert found["MACHINE"].startswith("4 cores, which the broker shares, with records of")
    assert found["MACHINE"] in " ".join(table.split())
    kept = [
        line for line in old.splitlines() if "Measured(" not in line and "MACHINE =" not in line
    ]
    assert [line for line in kept if line not in made.splitlines()] == []


def test_rates_that_are_missing_are_not_planned_with() -> None:
    measured = report()
    with pytest.raises(LookupError, match="0 times, instead of once"):
        readme.with_rates("", measured)
    measured["contenders"] = [
        line for line in measured["contenders"] if line["name"] != "kworker-claims"
    ]
    with pytest.raises(LookupError, match="needs the rate of kworker-claims"):
        readme.with_rates(SOURCE.read_text(), measured)
