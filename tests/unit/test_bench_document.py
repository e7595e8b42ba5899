"""The page of the benchmark: made of its figures, whole, and the same from the same ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import (
    blocks,
    contenders,
    document,
    lifecycle,
    markdown,
    plots,
    published,
    readme,
    reasons,
    scale,
    tables,
    verdicts,
)
from kworker.core import capacity
from tests.unit.support.bench_report import COMMIT, report

SOURCE = Path(capacity.__file__)
FIRST = contenders.TARGETS[0][:2]


@pytest.fixture(autouse=True)
def _read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reasons, at the commit of the report, and of the target that it misses."""
    monkeypatch.setattr(reasons, "READ_AT", COMMIT)
    monkeypatch.setitem(reasons.REASONS, FIRST, "It costs a µs.")


def page(report: dict[str, Any]) -> str:
    return document.page(report, document.TEMPLATE.read_text())


def test_the_page_has_each_line_of_the_benchmark_and_no_open_block() -> None:
    made = page(report())
    assert "{{" not in made
    assert [each.what for each in contenders.CONTENDERS if each.what not in made] == []
    for shown in (
        "commit `abc1234` with 2 CPUs, which the broker shares. The measurements, repeated ones"
        " included, took 5 minutes.",
        "is the median of 5 rounds, or of 1 where no ratio is wanted",
        "the slowest round is up to 18 % below the fastest.",
        "At most 1.3 % of the CPU went to other virtual machines",
        "left out: celery: no broker",
        "| Quix Streams | 10,000 | 9,000 … 11,000 | 100 | yes | 1.25 × (kworker, no-op,",
        "- *aiokafka, tasks without order*: without order\n",
        "| held | 5 ms | 20 ms | 40 ms | 980 ms | 990 ms | yes |",
        "| free | 5 ms | 20 ms | 40 ms | — | 41 ms | no |",
        f"| {lifecycle.START} | ≤ 3 s | 2.10 s | yes |",
        "| at least once | 50ms | 1.00 | 5 ms | 6 ms | — | 9 | 1 |",
        "| exactly once | 50ms | 1.00 | 5 ms | 6 ms | 12.3 | 9 | 1 |",
        "| key, 1 key | 25.00 s | 24.00 s | 1.04 × as fast |",
        "| records | 5,000 | 3.00 µs | 120 MB |",
        "- dead 1,000: it would take long",
        "| scale, records | may cost 1.25 × | at 5,000 a record costs 1.02 × the least | yes |",
        "| 100 | 6,200 | 2,000,000,000 | 39,000,000 |",
        "- a worker on each core but 2",
        "**kworker, no-op, key order, commits, beside raw poll(), tuned: ≥ 0.5 ×.** "
        + reasons.REASONS[FIRST],
    ):
        assert shown in made, shown


@pytest.mark.parametrize(
    ("probe", "held"),
    [("held", "yes"), ("free", "no"), ("asked", "yes"), ("left out", "—"), ("", "—")],
)
def test_a_row_tells_if_others_wait_for_a_slow_key(probe: str, held: str) -> None:
    measured = report()
    line = next(each for each in measured["contenders"] if each["name"] == "arroyo")
    line["probe"] = probe
    assert f"| arroyo, serial | 10,000 | 9,000 … 11,000 | 100 | {held} |" in page(measured)


def test_latencies_of_what_is_only_asked_are_not_shown() -> None:
    assert "| asked |" not in page(report())


@pytest.mark.parametrize(
    ("name", "other", "is_shown"),
    [
        ("kworker-wait", "threads", True),
        ("parallel-hot", "parallel-even", True),
        ("parallel-wait", "threads", False),
    ],
)
def test_ratios_are_shown_of_kworker_or_within_a_family(
    name: str, other: str, *, is_shown: bool
) -> None:
    """A rival is compared with what others do in its own row, by kworker's ratio there."""
    figures = {"records_per_second": 5, "rounds": [5], "peak_bytes": 0}
    lines = [
        {"name": other, "what": "the base", "ratios": {}, **figures},
        {"name": name, "what": "the other", "ratios": {other: 4.44}, **figures},
    ]
    assert ("4.44 × (the other)" in blocks._compared(report(), lines)) is is_shown


def test_rivals_that_lack_the_same_share_a_note() -> None:
    lines = [
        {"what": what, "lacks": lacks}
        for what, lacks in (("a", "order"), ("b", ""), ("c", "commits"), ("d", "order"))
    ]
    assert blocks._lacking(lines) == "- *a; d*: without order\n- *c*: without commits"
    assert blocks._lacking([{"what": "b"}]) == ""


def test_a_report_of_an_older_benchmark_is_shown_without_the_rest() -> None:
    measured = report()
    for line in measured["contenders"]:
        for name in ("alone", "stolen", "lacks", "probe"):
            del line[name]
    del measured["seconds"], measured["scale"]["left_out"], measured["scale"]["assumptions"]
    made = page(measured)
    assert "It assumes" not in made
    assert "*aiokafka" not in made


def test_the_page_tells_how_much_the_cpus_themselves_were_slower() -> None:
    """A report of an older benchmark does not know."""
    told = "took 1.00 to 2.50 times its least CPU time during these, in the middle 1.50 times"
    loops = {"loop_us": {"best": 200.0, "kept": [500.0, 200.0, 300.0]}}
    assert told in page(report() | loops)
    assert "never changes took" not in "".join(blocks._noise(report()))


def test_the_largest_stolen_share_is_of_any_part() -> None:
    """As a number or as one for each round; shares of something else do not count."""
    parts = {"a": [{"stolen": 0.01, "share": 0.9}], "b": {"stolen": [0.0, 0.02]}, "c": {"d": 3}}
    assert list(blocks._stolen(parts)) == [0.01, 0.0, 0.02]


def test_a_row_in_which_the_rival_failed_is_shown_as_not_known() -> None:
    measured = report()
    row = published.Row("KEY", 1, [], [], left_out="no record\nin 60 s | see the log")
    measured["published"] = [row._asdict()]
    made = page(measured)
    assert "| key, 1 key | — | — | left out: no record in 60 s \\| see the log |" in made
    assert "| Parallel Consumer's table: key, 1 key | ≥ 0.98 × |  | not known |" in made


def test_each_target_is_told_with_what_was_reached() -> None:
    told = list(verdicts.verdicts(report()))
    wanted = len(contenders.TARGETS) + 1 + 1 + len(tables.BOUNDS) + 1 + 2
    assert len(told) == len({each.target for each in told}) == wanted
    assert [each.what for each in told if not each.met] == [
        "kworker, no-op, key order, commits, beside raw poll(), tuned"
    ]


@pytest.mark.parametrize(
    ("ratio", "told"), [(0.9, "0.90 ×"), (0.994, "0.99 ×"), (0.9859, "0.9859 ×"), (1.2, "1.20 ×")]
)
def test_a_ratio_has_the_digits_that_tell_whether_it_is_enough(ratio: float, told: str) -> None:
    measured = report()
    measured["targets"] = [{"name": "kworker", "to": "poll", "least": 0.99, "ratio": ratio}]
    [found] = [each for each in verdicts.verdicts(measured) if each.target == ("kworker", "poll")]
    assert (found.reached, found.met) == (told, ratio >= 0.99)


def test_the_name_of_a_target_can_be_read_alone() -> None:
    """In the table of targets, "the same" would be the same as another line."""
    measured = report()
    for line in measured["contenders"]:
        if line["name"] == "kworker-retries":
            line["alone"] = "kworker, no-op, while 5,000 wait for a retry"
    told = {each.target: each.what for each in verdicts.verdicts(measured)}
    assert told["kworker-retries", "kworker"] == (
        "kworker, no-op, while 5,000 wait for a retry, beside kworker, no-op, key order, commits"
    )


def test_a_reason_is_of_a_target_that_there_is() -> None:
    targets = {each.target for each in verdicts.verdicts(report())}
    assert {target for target in reasons.REASONS if isinstance(target, tuple)} <= targets


@pytest.mark.parametrize("template", ["{{ no-op }}", "{{ no-op }}\n{{ unheard-of }}"])
def test_a_page_without_all_tables_is_refused(template: str) -> None:
    with pytest.raises(LookupError, match="the template's blocks differ"):
        document.page(report(), template)


@pytest.mark.parametrize(
    ("per_second", "told"),
    [
        (1_019_500, "1,020,000"),
        (318_449, "318,000"),
        (6_254, "6,250"),
        (995, "995"),
        (61.27, "61.3"),
        (6.127, "6.13"),
    ],
)
def test_a_rate_has_three_digits(per_second: float, told: str) -> None:
    assert markdown.rate(per_second) == told
    assert markdown.rounded(per_second) == float(told.replace(",", ""))


class Checkout:
    """The files that the command reads and writes, in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.page, self.plots = folder / "performance.md", folder / "performance"
        self.readme, self.capacity = folder / "README.md", folder / "capacity.py"
        self.readme.write_text(f"{readme.BEGIN}\n{readme.END}")
        self.capacity.write_text(SOURCE.read_text())
        self.inputs = [str(folder / "bench.json"), str(folder / "scale.json")]

    def give(self, measured: dict[str, Any]) -> None:
        scale = measured.pop("scale")
        for path, figures in zip(self.inputs, (measured, scale), strict=True):
            Path(path).write_text(json.dumps(figures))

    def made(self) -> dict[Path, bytes]:
        found = [self.page, self.readme, self.capacity, *self.plots.glob("*")]
        return {path: path.read_bytes() for path in found if path.exists()}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    there = Checkout(tmp_path)
    monkeypatch.setattr(document, "PAGE", there.page)
    monkeypatch.setattr(document, "README", there.readme)
    monkeypatch.setattr(document, "CAPACITY", there.capacity)
    return there


def test_page_plots_and_figures_are_written_together(checkout: Checkout) -> None:
    """And from the kept figures they can be made again."""
    before = checkout.made()
    checkout.give(report())
    document.main(checkout.inputs)
    made = checkout.made()
    assert [path for path, old in before.items() if made[path] == old] == []
    checkout.page.unlink()
    for path in checkout.plots.glob("*.svg"):
        path.unlink()
    document.main([])
    assert checkout.made() == made
    assert {path.name for path in checkout.plots.iterdir()} == {
        document.KEPT,
        *(f"{kind}.svg" for kind in document.PLOTTED),
    }
    assert checkout.page.read_text() == page(report())
    assert ">records<" in (checkout.plots / "scale.svg").read_text()


def test_a_report_with_an_unexplained_target_changes_no_file(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = checkout.made()
    checkout.give(report())
    monkeypatch.delitem(reasons.REASONS, FIRST)
    with pytest.raises(SystemExit, match=r"say in bench/reasons.py why .* was not reached"):
        document.main(checkout.inputs)
    assert checkout.made() == before


def test_a_plot_that_fails_changes_no_file(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else new plots would stand beside an old page."""
    before = checkout.made()
    checkout.give(report())
    monkeypatch.setitem(plots.PLOTS, document.PLOTTED[-1], lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        document.main(checkout.inputs)
    assert checkout.made() == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda of: [of.pop("tables"), of.pop("landing")],
            "the report of `make bench` lacks tables, landing: give one of a full run",
        ),
        (
            lambda of: of["contenders"].pop(),
            "the report of `make bench` lacks kworker-claims: give one of a full run",
        ),
        (
            lambda of: [of["scale"].pop("size"), of["scale"]["points"].pop("dead")],
            "the report of `make scale` lacks size, dead: give one of a full run",
        ),
        (
            lambda of: of["size"].update(rounds=1),
            "the report of `make bench` is not of a full run: it has rounds 1 instead of 5",
        ),
        (
            lambda of: of["scale"].update(size=scale.FULL_SIZE | {"each": 50_000}),
            "the report of `make scale` is not of a full run: it has each 50000 instead of 1000000",
        ),
        (
            lambda of: of["scale"].update(commit="def5678"),
            "the reports are of the commits abc1234 and def5678: give two of the same one",
        ),
        (
            lambda of: [each.update(commit="abc1234-dirty") for each in (of, of["scale"])],
            "the reports are of abc1234-dirty: measure both again with no uncommitted change",
        ),
    ],
)
def test_reports_not_of_full_runs_of_one_commit_are_refused(
    checkout: Checkout, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    before = checkout.made()
    change(measured := report())
    checkout.give(measured)
    with pytest.raises(SystemExit) as ended:
        document.main(checkout.inputs)
    assert ended.value.code == told
    assert checkout.made() == before


@pytest.mark.parametrize("absent", ["celery", "celery-wait"])
def test_what_a_report_says_is_absent_is_not_asked_for(absent: str) -> None:
    """A rival as a whole, or one contender."""
    measured = report() | {"absent": {absent: "no broker"}}
    of_celery = [each.name for each in contenders.CONTENDERS if each.rival == "celery"]
    measured["contenders"] = [
        line for line in measured["contenders"] if line["name"] not in of_celery
    ]
    lacking = [] if absent == "celery" else [name for name in of_celery if name != absent]
    assert list(document._lacking(measured)) == lacking


def test_one_file_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        document.main(["bench.json"])
    assert "give both files, or none" in capsys.readouterr().err
