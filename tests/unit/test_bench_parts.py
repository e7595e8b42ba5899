"""Parts of the benchmark: what is measured again, and what is left out. Nothing is started."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import disturbance, frameworks, landing, lifecycle, ours, published, tables
from bench.environments import Unavailable
from bench.place import Place
from bench.watched import Broken, Measured

PLACE = Place("", "", Path())
STALLED = "9,000 of 10,000 records are left after the deadline"


class Runs(list[str]):
    """The names of the runs so far; the figure of each is its number, from 1."""

    def measured(self, run: str) -> float:
        self.append(run)
        return float(len(self))


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The shares that others steal during the next measurements; nothing after them."""
    shares: list[float] = []

    class Stolen:
        def share(self) -> float:
            return shares.pop(0) if shares else 0.0

    monkeypatch.setattr(disturbance, "Stolen", Stolen)
    return shares


def of_tables(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> list[dict]:
    def figures_of(place: Place, name: str, run: str) -> tables.Figures:
        figure = runs.measured(run)
        return tables.Figures(figure, figure, figure)

    monkeypatch.setattr(tables, "fill_topics", lambda *_: None)
    monkeypatch.setattr(tables, "warm_up", lambda *_: None)
    monkeypatch.setattr(tables, "figures_of", figures_of)
    found = tables.measure(PLACE, 2, 1, 1)
    return [*found["rounds"]["pyspark"], *found["rounds"]["kworker"], *found["targets"]]


def of_landing(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> list[dict]:
    @contextmanager
    def started(place: Place, run: str, handler: str) -> Iterator[str]:
        yield run

    monkeypatch.setattr(landing, "_udf", started)
    monkeypatch.setattr(landing, "_kworker", started)
    monkeypatch.setattr(landing, "_rate", lambda _, run, *__: runs.measured(run))
    return landing.measure(PLACE, 2, 1.0)


def of_published(
    monkeypatch: pytest.MonkeyPatch, runs: Runs, failures: dict[str, Exception] | None = None
) -> list[dict]:
    """`failures` are of runs whose names begin so."""

    def measure(place: Place, run: str, contender: object, records: int) -> Measured:
        seconds = runs.measured(run)
        for name, failure in (failures or {}).items():
            if run.startswith(name):
                raise failure
        return Measured(records, seconds, 0)

    monkeypatch.setattr(published, "fill", lambda *_, **__: None)
    monkeypatch.setattr(ours, "measure", measure)
    monkeypatch.setattr(frameworks, "measure", measure)
    monkeypatch.setattr(frameworks, "prepare", lambda _: None)
    return published.measure(PLACE, 2)


def of_lifecycle(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> list[dict]:
    parts = {
        "_start_and_drain": (lifecycle.START, lifecycle.DRAIN),
        "_reload": (lifecycle.RELOAD, lifecycle.RELOAD_WORST),
        "_join": lifecycle.JOINED,
        "_join_by_brokers": tuple(what + lifecycle.BY_BROKERS for what in lifecycle.JOINED),
    }
    for name, figures in parts.items():

        def part(
            place: Place, run: str, *, figures: tuple[str, ...] = figures
        ) -> Iterator[tuple[str, float]]:
            seconds = runs.measured(run)
            yield from ((what, seconds) for what in figures)

        part.__name__ = name
        monkeypatch.setattr(lifecycle, name, part)
    return lifecycle.measure(PLACE, 2)


LONG, SHORT = 5, len(published.CASES) - 5
PARTS = [
    pytest.param(of_tables, 2 * 2, id="tables"),
    pytest.param(of_landing, 2 * 2 * len(landing.CASES), id="landing"),
    pytest.param(of_published, 2 * (LONG + 2 * SHORT), id="published"),
    pytest.param(of_lifecycle, 2 * 4, id="lifecycle"),
]
Measure = Callable[[pytest.MonkeyPatch, Runs], list[dict]]


@pytest.mark.parametrize(("measure", "count"), PARTS)
def test_only_a_disturbed_measurement_is_repeated(
    measure: Measure,
    count: int,
    shares: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each try has topics, folders and a group of its own, which its name stands for."""
    shares += [0.01, 0.05, 0.03, 0.04]
    measure(monkeypatch, runs := Runs())
    assert (len(runs), len(set(runs))) == (count + 2, count + 2)
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(runs)
    disturbed = [line.partition(", but ")[2] for line in told if "CPU" in line]
    assert disturbed == [f"{share}% of the CPU went to others" for share in (5, 3, 4)]


@pytest.mark.parametrize("measure", [of_tables, of_landing, of_published, of_lifecycle])
def test_a_row_has_the_largest_share_of_the_tries_that_count(
    measure: Measure, shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares += [0.01, 0.05, 0.03, 0.04]
    rows = measure(monkeypatch, Runs())
    assert max(row["stolen"] for row in rows) == 0.03
    assert json.loads(json.dumps(rows)) == rows
    shares += [0.015, 0.05, 0.0]
    assert max(row["stolen"] for row in measure(monkeypatch, Runs())) == 0.015


def test_the_least_disturbed_try_of_each_side_counts(
    shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try of each side is run 1 and run 3, both disturbed."""
    shares += [0.05, 0.0, 0.05, 0.0]
    [row, other] = of_landing(monkeypatch, Runs())
    assert (row["theirs"], row["ours"]) == ([2.0, 7.0], [4.0, 8.0])
    assert (other["theirs"], other["ours"]) == ([5.0, 9.0], [6.0, 10.0])
    shares += [0.05, 0.0, 0.05, 0.0]
    bare, _, ours, *_ = of_tables(monkeypatch, Runs())
    assert (bare["cold_s"], ours["cold_s"]) == (2.0, 4.0)
    shares += [0.05, 0.0]
    assert of_lifecycle(monkeypatch, Runs())[0]["seconds"] == [2.0, 6.0]


@pytest.mark.parametrize(
    ("kind", "older"),
    [
        (tables.Figures, {"cold_s": 15.0, "empty_s": 5.0, "warm": 50_000.0}),
        (tables.Target, {"what": "warm batches", "ratio": 1.0, "bound": 0.95, "met": True}),
        (landing.Row, {"what": "some", "ours": [2.0], "theirs": [1.0], "least": 1.5}),
        (published.Row, {"ordering": "KEY", "keys": 1, "ours_s": [2.0], "theirs_s": [2.0]}),
        (lifecycle.Row, {"what": "some", "seconds": [2.0], "most": None}),
    ],
)
def test_rows_of_an_older_report_are_read(kind: Callable[..., Any], older: dict) -> None:
    row = kind(**older)
    assert row.stolen == 0.0
    assert row._asdict().items() >= older.items()


def test_a_row_in_which_the_rival_stalls_is_left_out(
    shares: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is neither measured again nor forgotten, and the other rows go on."""
    runs, failures = Runs(), {"published-key-100-0-theirs": Broken(STALLED)}
    rows = of_published(monkeypatch, runs, failures)
    assert [run for run in runs if "key-100-" in run] == ["published-key-100-0-theirs-0"]
    [left_out] = [row for row in rows if row["left_out"]]
    assert left_out == {
        "ordering": "KEY",
        "keys": 100,
        "ours_s": [],
        "theirs_s": [],
        "stolen": 0.0,
        "left_out": STALLED,
    }
    assert len(rows) == len(published.CASES)
    assert f"100 keys  left out: Parallel Consumer: {STALLED}" in capsys.readouterr().out


def test_a_rival_that_fails_when_tried_again_keeps_its_figure(
    shares: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first try was merely disturbed."""
    shares += [0.05]
    rival = "published-partition-20-0-theirs"
    row, *_ = of_published(monkeypatch, Runs(), {f"{rival}-1": Broken(STALLED)})
    assert (row["theirs_s"], row["stolen"], row["left_out"]) == ([1.0], 0.05, "")
    assert f"not measured again: {STALLED}" in capsys.readouterr().out


def test_kworker_may_not_fail_when_tried_again(
    shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares += [0.0, 0.05]
    failures = {"published-partition-20-0-ours-1": Broken("9 done of 10")}
    with pytest.raises(Broken, match="9 done of 10"):
        of_published(monkeypatch, Runs(), failures)


def test_a_row_left_out_later_keeps_the_rounds_before(
    shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = {"published-unordered-20-1-theirs": Broken(STALLED)}
    row = of_published(monkeypatch, Runs(), failures)[-1]
    assert (len(row["theirs_s"]), len(row["ours_s"]), row["left_out"]) == (1, 1, STALLED)


def test_the_target_of_a_row_left_out_is_not_met(capsys: pytest.CaptureFixture[str]) -> None:
    """With and without an earlier round, in which kworker was twice as fast."""
    met = published.Row("KEY", 1, [1.0], [2.0])
    for figures in ([], [1.0]):
        row = published.Row("KEY", 100, figures, [2 * each for each in figures], 0.0, STALLED)
        assert (row.met, met.met) == (False, True)
        assert not row.ratio >= row.least
        assert not published.show([met._asdict(), row._asdict()])
        [told] = [line for line in capsys.readouterr().out.splitlines() if "FAIL" in line]
        assert told.endswith(f"100 keys  not known, Parallel Consumer is left out: {STALLED}")


def test_a_failure_of_kworker_ends_the_part(
    shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = partial(of_published, failures={"published-key-1-0-ours": Broken("it ended")})
    with pytest.raises(Broken, match="it ended"):
        failing(monkeypatch, Runs())


def test_without_the_rival_there_is_no_row(
    shares: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is no failure: the rival needs Maven."""
    absent = Unavailable("Maven is not installed")
    assert of_published(monkeypatch, Runs(), {"published-": absent}) == []
    assert published.show([])
    assert capsys.readouterr().out == "  left out: Maven is not installed\n"
