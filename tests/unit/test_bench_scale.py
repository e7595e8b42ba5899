"""The benchmark of scale, but for what it measures: its verdicts, model, table and records."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench import scale, topic
from bench.place import Place
from bench.progress import Progress
from bench.scale import ScaleBenchmark, ScalePoint
from bench.watched import Broken
from kworker.core.headers import Envelope
from kworker.delay.routes import leaves_ms

DUE_MS = 1_700_000_000_000


def point(
    size: int,
    cost_us: float,
    *,
    records: int = 1_000,
    worker: int = 60_000_000,
    stolen: float = 0.0,
) -> ScalePoint:
    peaks = {"worker": worker, "delay": 50_000_000, "supervisor": 40_000_000}
    return ScalePoint(size, records, cost_us * records / 1e6, peaks, stolen)


def met(sweep: str, points: Sequence[ScalePoint]) -> list[bool]:
    return [kept for kept, _ in scale.verdicts(sweep, points)]


@pytest.mark.parametrize(("last_us", "kept"), [(4.0, True), (5.0, True), (5.1, False)])
def test_the_largest_point_may_cost_a_quarter_more_than_the_least(
    last_us: float, kept: bool
) -> None:
    assert met("keys", [point(1, 9.0), point(8, 4.0), point(64, last_us)]) == [kept]


def test_the_median_of_the_tries_with_their_cpu_counts() -> None:
    tries = [point(1, 9.0), point(1, 3.0), point(1, 5.0), point(1, 1.0, stolen=0.5)]
    assert scale.median_of(tries).cost_us == pytest.approx(5.0)
    assert scale.median_of([point(1, 2.0, stolen=0.2), tries[3]]).stolen == 0.2


@pytest.mark.parametrize("cheaper_stolen", [0.0, 0.02])
def test_of_two_tries_the_less_disturbed_one_counts(cheaper_stolen: float) -> None:
    """Whichever cost it has: neither the cheaper nor the dearer one is favoured."""
    tries = [point(1, 9.0, stolen=0.01), point(1, 3.0, stolen=cheaper_stolen)]
    least = min(tries, key=lambda each: each.stolen)
    assert scale.median_of(tries) == scale.median_of(tries[::-1]) == least


def test_one_point_alone_is_not_judged() -> None:
    assert met("keys", [point(1, 9.0)]) == met("keys", []) == []


def test_more_processes_than_cpus_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the CPUs, so a record costs each of them more."""
    monkeypatch.setattr(scale, "CPUS", 2)
    points = [point(1, 200.0), point(2, 100.0), point(4, 400.0)]
    assert met("processes", points) == [True]
    assert "there are 2 CPUs: no verdict" in scale.line("processes", points[2])
    assert "no verdict" not in scale.line("processes", points[1])


def test_a_worker_may_not_take_more_memory_with_more_records() -> None:
    points = [point(1, 4.0, worker=151_000_000), point(2, 4.0)]
    assert met("records", points) == met("waiting", points) == [True, False]
    assert met("dead", points) == [True]


@pytest.mark.parametrize(
    ("sizes", "megabytes", "kept"),
    [
        ((100_000, 1_000_000, 10_000_000), (80, 120, 100), [True]),
        ((100_000, 1_000_000, 10_000_000), (80, 90, 101), [False]),
        ((50_000, 100_000, 1_000_000), (40, 80, 100), [True]),  # the first fills no buffer
        ((5_000, 50_000), (40, 80), []),  # as in a short run
        ((100_000, 1_000_000), (0, 80), []),  # no sample was taken
    ],
)
def test_memory_at_the_largest_point_is_near_the_smallest(
    sizes: Sequence[int], megabytes: Sequence[int], kept: list[bool]
) -> None:
    points = [
        point(size, 4.0, records=size, worker=each * 1_000_000)
        for size, each in zip(sizes, megabytes, strict=True)
    ]
    assert met("records", points) == [True, True, *kept]  # after the cost and the 150 MB
    assert met("keys", points) == [True]


def test_waiting_records_are_compared_at_the_same_work() -> None:
    """Each point runs as many records, so the one with the fewest waiting is the first."""
    points = [
        point(size, 4.0, records=1_000_000, worker=worker)
        for size, worker in ((1_000, 80_000_000), (100_000, 90_000_000), (1_000_000, 110_000_000))
    ]
    [_, _, (kept, told)] = scale.verdicts("waiting", points)
    assert not kept
    assert "at 1,000,000 a worker takes 1.38 × the memory that it takes at 1,000" in told


def test_the_model_gives_each_core_but_two_a_worker() -> None:
    one, hundred = scale.model(5.0, 0.9)
    assert (one.workers, hundred.workers) == (62, 6_200)
    assert one.no_op == pytest.approx(62 * 0.9 * 200_000)
    assert one.waiting == pytest.approx(62 * 6_400)
    assert hundred.no_op == pytest.approx(100 * one.no_op)


def test_the_model_has_no_worker_wait_faster_than_it_does_nothing() -> None:
    [one, _] = scale.model(1_000.0, 1.0)
    assert one.waiting == one.no_op == pytest.approx(62_000)


def test_two_processes_at_half_the_cost_scale_fully() -> None:
    assert scale.scaling([point(1, 200.0), point(2, 100.0)]) == 1.0
    assert scale.scaling([point(1, 200.0), point(2, 125.0)]) == pytest.approx(0.8)
    assert scale.scaling([point(1, 200.0)]) == 1.0


def test_the_report_says_what_failed_and_what_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        "records": [point(100_000, 5.0), point(1_000_000, 6.5)],
        "processes": [point(1, 200.0), point(2, 100.0)],
    }
    left_out = ["dead 1,000,000: it would take too long"]
    of = {"commit": "abc1234", "size": scale.FULL_SIZE}
    assert not scale.report(found, of, tmp_path / "report.json", left_out)
    told = capsys.readouterr().out
    assert "FAIL  records: at 1,000,000 a record costs 1.30 × the least" in told
    assert "PASS  processes: at 2 a record costs 0.50 ×" in told
    assert "left out: dead 1,000,000: it would take too long" in told
    assert "computed, not measured" in told
    written = json.loads((tmp_path / "report.json").read_text())
    assert {name: written[name] for name in of} == of
    assert ScalePoint(**written["points"]["records"][0]) == found["records"][0]
    assert [row["workers"] for row in written["computed"]] == [62, 6_200]
    assert written["left_out"] == left_out
    assert written["assumptions"] == scale.assumptions(6.5, 1.0)
    assert all(f"  - {each}\n" in told for each in written["assumptions"])


def test_without_its_sweeps_nothing_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scale.report({"records": [point(1, 4.0)]}, {}, tmp_path / "report.json")
    assert "computed" not in capsys.readouterr().out
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["computed"] == written["assumptions"] == written["left_out"] == []


def test_each_point_that_would_take_too_long_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a reader would think that the sweep ends where its points do."""
    costs_us = {1_000: 50.0, 10_000: 2_000.0}
    monkeypatch.setattr(
        ScaleBenchmark,
        "_measure",
        lambda _, _sweep, size, _nth: point(size, costs_us[size], records=size)._asdict(),
    )
    sizes = {"dead": [1_000, 10_000, 100_000, 1_000_000]}
    benchmark = ScaleBenchmark(Place("", "", tmp_path), sizes, 1, 1, 2)
    points = benchmark.points("dead", Progress(None, {}))
    assert [each.size for each in points] == [1_000, 10_000]
    assert benchmark.left_out == [
        "dead 100,000: at the cost of the point before it would take 200 s, over 120 s",
        "dead 1,000,000: at the cost of the point before it would take 2,000 s, over 120 s",
    ]


def test_the_points_of_a_sweep_are_tried_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the tries of a point have lasted long enough, or were as many as they may be."""
    tried: list[tuple[int, int]] = []

    def measure(_: object, _sweep: str, size: int, nth: int) -> dict[str, Any]:
        tried.append((size, nth))
        return point(size, nth + 1.0, records=size)._asdict()

    monkeypatch.setattr(ScaleBenchmark, "_measure", measure)
    sizes = {"keys": [1_000, 4_000_000, 9_000_000]}
    benchmark = ScaleBenchmark(Place("", "", tmp_path), sizes, 1, 1, 3)
    points = benchmark.points("keys", Progress(None, {}))
    first = [(1_000, 0), (4_000_000, 0), (9_000_000, 0)]
    assert tried == [*first, (1_000, 1), (4_000_000, 1), (9_000_000, 1), (1_000, 2)]
    assert [each.cost_us for each in points] == pytest.approx([2.0, 1.0, 1.0])


def test_a_written_retry_leaves_its_delay_topic_when_it_is_due() -> None:
    """kworker reads its headers, and the time of writing decides when the delay is over."""
    [_, second] = topic.retries(2, DUE_MS)
    envelope = Envelope.open(second["headers"])
    assert (envelope.source.place, envelope.attempt) == (("bench", 1, 1), 2)
    assert leaves_ms(second["timestamp"], 600_000, envelope.due_ms, DUE_MS) == DUE_MS


def test_the_time_of_an_event_is_read_from_the_log(tmp_path: Path) -> None:
    log, at = tmp_path / "log", datetime(2026, 1, 2, tzinfo=UTC)
    lines = [
        {"timestamp": "2026-01-01T00:00:00Z", "event": "delay partitions assigned"},
        {"timestamp": "2026-01-02T00:00:00Z", "event": "partitions assigned"},
        {"timestamp": "2026-01-03T00:00:00Z", "event": "partitions assigned"},
    ]
    log.write_text("no JSON\n" + "\n".join(map(json.dumps, lines)))
    assert scale.logged_at(log, "partitions assigned") == at.timestamp()
    with pytest.raises(Broken, match="no 'revoked' in"):
        scale.logged_at(log, "revoked")


def test_help_teaches_and_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        scale.main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "For due records and dead letters, it is from" in told
    assert "300 lines" not in told  # that is for who reads the code


def test_a_short_run_has_the_same_sweeps() -> None:
    assert list(scale.QUICK) == list(scale.FULL)
    assert all(len(points) == 2 for points in scale.QUICK.values())
