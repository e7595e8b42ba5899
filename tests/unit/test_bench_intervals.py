"""The trade-off of the commit interval: what is counted, what is measured again, and its plot."""

from pathlib import Path
from typing import Any

import pytest

from bench import disturbance, intervals, plots
from bench.handwritten import WAIT_THREADS
from bench.intervals import Row, Sent, Setting
from bench.paced import PER_SECOND
from bench.place import Place
from bench.watched import Broken

STATUS = {
    "counters": {"commits": 40},
    "transactions": {"committed": {"count": 40, "sum_s": 1.0}, "aborted": {"count": 2}},
}


@pytest.mark.parametrize(("exactly_once", "count"), [(False, 40), (True, 120)])
def test_a_transaction_has_three_requests_and_a_commit_one(
    *, exactly_once: bool, count: int
) -> None:
    assert intervals.requests(STATUS, exactly_once=exactly_once) == count


def test_requests_and_entries_count_for_the_time_between() -> None:
    """Those of the start, before the first time, do not."""
    before, after = Sent(10.0, 3, 1_000), Sent(15.0, 28, 1_200)
    assert after.rates_since(before) == (5.0, 40.0)


@pytest.mark.parametrize(
    ("setting", "per_second"),
    [(Setting("2s", exactly_once=False), 0.6), (Setting("50ms", exactly_once=True), 63.0)],
)
def test_a_worker_that_commits_more_often_is_broken(setting: Setting, per_second: float) -> None:
    """Then it has rested, and what the interval costs is not known."""
    intervals.check(setting, per_second)
    with pytest.raises(Broken, match=f"commit_interval of {setting.interval}"):
        intervals.check(setting, 2 * per_second)


def test_handlers_at_the_pace_always_have_a_record_in_hand() -> None:
    """But they keep up with it."""
    busy = PER_SECOND * intervals.CALL_S
    assert WAIT_THREADS / 2 < busy < WAIT_THREADS


def test_rows_of_earlier_versions_still_load(capsys: pytest.CaptureFixture[str]) -> None:
    old = Row("at least once", "50ms", 1_000, 5.0, 9.0, 110.0, 0.0)._asdict()
    del old["requests_per_second"], old["stolen"]
    assert intervals.show([old])
    assert "110 entries/s" in capsys.readouterr().out


def test_a_disturbed_setting_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try has topics and a group of its own, else it would find the work done."""
    tried: list[str] = []

    def measured(_: Place, run: str, *__: Any) -> Row:
        tried.append(run)
        return Row("exactly once", "2s", 1, 1.0, 1.0, 1.0, 1.0, len(tried))

    shares = iter([0.3, 0.01, 0.0])
    monkeypatch.setattr(intervals, "_row", measured)
    monkeypatch.setattr(disturbance.Stolen, "share", lambda _: next(shares))
    rows = intervals.measure(Place("", "", tmp_path), 1, 1.0, 1, ("2s",))
    assert tried == ["interval-2s-false-0", "interval-2s-false-1", "interval-2s-true-0"]
    assert [(row["requests_per_second"], row["stolen"]) for row in rows] == [(2, 0.01), (3, 0.0)]


def rows() -> list[dict[str, Any]]:
    return [
        Row(guarantee, interval, 1, 5.0, 9.0, entries, repeated, entries / 8)._asdict()
        for guarantee in ("at least once", "exactly once")
        for interval, entries, repeated in (("50ms", 110.0, 0.0), ("2s", 24.0, 1_680.0))
    ]


def test_the_plot_has_each_interval_between_its_two_costs(tmp_path: Path) -> None:
    """A point for each guarantee in the panels of both costs, and the axis of the latency."""
    plots.intervals({"intervals": rows()}, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    assert drawn.count(">50ms<") == drawn.count(">2s<") == 2 * 2 + 1
    for told in ("commit requests/s", "entries/s of offsets", "results that came twice", "exactly"):
        assert f">{told}" in drawn


def test_a_plot_without_requests_shows_none(tmp_path: Path) -> None:
    """Earlier versions did not count them; a line at 0 would be a figure that nobody measured."""
    old = rows()
    for row in old:
        del row["requests_per_second"]
    plots.intervals({"intervals": old}, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    assert "commit requests/s" not in drawn
    assert ">entries/s of offsets<" in drawn
