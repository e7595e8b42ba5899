"""The benchmarks, but for what they measure: their help, verdicts and plots."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import pytest

from bench import (
    backpressure,
    compare,
    console,
    landing,
    latency,
    lifecycle,
    marks,
    plots,
    published,
    run,
    stage_profile,
)
from bench.backpressure import Act, Sample
from bench.contenders import CONTENDERS, REFERENCES, TARGETS
from bench.place import Place
from bench.progress import Progress
from bench.run import QUICK, Benchmark
from bench.stages import STAGES
from bench.watched import Measured


@pytest.mark.parametrize(
    ("benchmark", "words"),
    [
        (backpressure, "messages of 40 KB, and runs three consumers"),
        (stage_profile, "a Kafka, writes 2,000,000 records of 200 bytes"),
        (console, "a Kafka, writes 4,000,000 records of 200 bytes"),
        (compare, "paused with SIGSTOP"),
    ],
)
def test_help_on_a_benchmark_teaches_and_starts_nothing(
    benchmark: ModuleType, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["--help"])
    assert ended.value.code == 0
    assert words in capsys.readouterr().out


def test_versions_are_compared_within_each_round() -> None:
    """The second round was twice as slow for all, which says nothing about the versions."""
    found = {"kworker": {"before": [100.0, 50.0, 100.0], "after": [90.0, 45.0, 110.0]}}
    [line] = compare.summary(found)
    assert line.split() == ["kworker", "after", "/", "before", "0.900", "(0.90", "…", "1.10)"]


def test_a_rate_is_that_of_the_turns_between_marks(tmp_path: Path) -> None:
    """A mark each 50 records, each millisecond of a turn; half of that on a CPU."""
    turns = [(turn * 100_000_000, turn * 100_000_000 + 20_000_000) for turn in range(10)]
    every = [(turn[0] + ms * 1_000_000) for turn in turns for ms in range(20)]
    after_all_turns = [turns[-1][1] + 1_000_000] * 5
    lines = (f"{when} {n * 500_000}\n" for n, when in enumerate([*every, *after_all_turns]))
    (tmp_path / "run.marks.17").write_text("".join(lines))
    by_time, by_cpu_time = marks.rates(tmp_path, "run", 50, turns)
    assert by_time == pytest.approx(50_000, rel=0.01)
    assert by_cpu_time == pytest.approx(100_000)


def test_a_version_must_be_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main([f"before={tmp_path}"])
    assert ended.value.code == 2
    assert "is not NAME=CHECKOUT with a `make install`" in capsys.readouterr().err


@pytest.mark.parametrize("names", [["before"], ["same", "same"]])
def test_versions_have_names_of_their_own(
    names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the figures of one would be those of the other."""
    command = tmp_path / ".venv/bin/kworker"
    command.parent.mkdir(parents=True)
    command.touch()
    with pytest.raises(SystemExit) as ended:
        compare.main([f"{name}={tmp_path}" for name in names])
    assert ended.value.code == 2
    assert "give two versions or more" in capsys.readouterr().err


def test_each_stage_of_a_profile_is_a_method_of_the_worker() -> None:
    """Else `make profile` would fail in the worker, at its start."""
    missing = [stage for stage in STAGES if stage.method not in vars(stage.owner)]
    assert missing == []


def test_a_rival_that_is_left_out_later_does_not_spoil_the_report(tmp_path: Path) -> None:
    """It has fewer rounds than the others, and the run has taken an hour."""
    progress = Progress(None, {})
    progress.rates |= {"kworker": [3.0, 4.0], "poll": [6.0, 8.0], "quix": [1.0]}
    progress.memory |= {"kworker": [1 << 20, 3 << 20], "poll": [1 << 20, 1 << 20]}
    progress.stolen |= {"kworker": [0.01, 0.03], "poll": [0.0, 0.0]}
    progress.absent["quix"] = "it ended"
    progress.absent_rows["latency of arroyo, serial"] = "no network"
    names = progress.rates.keys()
    chosen = tuple(each for each in CONTENDERS if each.name in names)
    place = Place("", "", tmp_path)
    report = Benchmark(place, replace(QUICK, rounds=2), chosen, progress).report()
    absent = {"quix": "it ended", "latency of arroyo, serial": "no network"}
    assert report["absent"] == absent
    [kworker] = [line for line in report["contenders"] if line["name"] == "kworker"]
    assert (kworker["ratios"], kworker["peak_bytes"]) == ({"poll": 0.5}, 2 << 20)
    assert (kworker["stolen"], kworker["probe"], kworker["lacks"]) == (0.03, "kworker", "")
    assert kworker["alone"] == kworker["what"] == "kworker, no-op, key order, commits"
    assert [target["to"] for target in report["targets"]] == ["poll"]


def test_contenders_without_a_target_run_in_fewer_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They show where others stand; what is promised needs the rounds."""
    measured = Measured(100, 1.0, 1 << 20)
    monkeypatch.setattr(Benchmark, "_measured", lambda *_: measured)
    names = ("poll", "consume", "kworker", "tasks-slow")
    chosen = tuple(each for each in CONTENDERS if each.name in names)
    size = replace(QUICK, rounds=3, untargeted_rounds=2)
    ran = Benchmark(Place("", "", tmp_path), size, chosen, Progress(None, {}))
    ran.run()
    counts = {name: len(rates) for name, rates in ran.rates.items()}
    # The last shows what a target could be at most.
    assert counts == {"poll": 3, "consume": 2, "kworker": 3, "tasks-slow": 3}
    assert ran.ratio("kworker", "consume") == 1


def test_targets_name_contenders() -> None:
    """Any other name would be a target that nobody sees."""
    names = {contender.name for contender in CONTENDERS}
    assert {name for target in TARGETS for name in target[:2]} | {*REFERENCES} <= names


def test_each_contender_has_a_name_that_stands_alone() -> None:
    """The table of targets shows it without the lines around it."""
    names = [contender.alone for contender in CONTENDERS]
    assert len(set(names)) == len(names)
    assert [name for name in names if "the same" in name or name[:2] == "1 "] == []


def test_the_figures_are_kept_if_a_table_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has taken an hour."""

    @contextmanager
    def servers(_: str, *, redis: bool) -> Iterator[Place]:
        yield Place("", "", tmp_path)

    def fail(_: list[dict]) -> bool:
        raise KeyError("stolen")

    part = run.Part(lambda *_: [{"seconds": 1}], fail)
    monkeypatch.setattr(run, "PARTS", {"lifecycle": part})
    monkeypatch.setattr(run, "servers", servers)
    monkeypatch.setattr(run, "fill", lambda *_, **__: None)
    monkeypatch.setattr(run.environments, "versions", dict)
    file = tmp_path / "report"
    monkeypatch.setattr("sys.argv", ["bench", "--only", "lifecycle", "--json", str(file)])
    with pytest.raises(KeyError):
        run.main()
    assert json.loads(file.read_text())["lifecycle"] == [{"seconds": 1}]


def acts(*, killed: int = -signal.SIGKILL, done: int = 10) -> dict[str, Act]:
    seen = [Sample(0.5, 20 << 20, 3), Sample(1.0, 30 << 20, 9)]
    return {
        "instant": Act("does nothing", 0, 1.0, 10, "cgroup v2", seen),
        "unbounded": Act("calls without a limit", killed, 1.0, 2, "cgroup v2", seen),
        "kworker": Act("kworker", 0, 1.0, done, "cgroup v2", seen),
    }


def test_back_pressure_is_shown_if_only_the_unbounded_is_killed() -> None:
    assert backpressure.verdict(acts(), 10)
    assert not backpressure.verdict(acts(killed=0), 10)
    assert not backpressure.verdict(acts(done=9), 10)
    told = str(acts()["unbounded"])
    assert "ended by SIGKILL after 1.0 s: 2 messages done, 30 MiB at most" in told


def test_a_plot_of_the_same_report_is_the_same_file(tmp_path: Path) -> None:
    """It is kept in the repository, where a change should mean something."""
    report = {"limit_bytes": 256 << 20, "acts": [asdict(act) for act in acts().values()]}
    for name in ("one.svg", "other.svg"):
        plots.backpressure(report, tmp_path / name)
    one = (tmp_path / "one.svg").read_text()
    assert one == (tmp_path / "other.svg").read_text()
    assert all(f">{act.name}<" in one for act in acts().values())


def published_rows(*, serial_s: float) -> list[dict]:
    serial = published.Row("KEY", 1, [serial_s] * 3, [25.0] * 3)
    parallel = published.Row("UNORDERED", 20, [2.0, 2.5, 1.9], [2.1, 2.2, 2.3])
    return [serial._asdict(), parallel._asdict()]


def test_serial_work_may_be_two_per_cent_slower_than_the_rival() -> None:
    assert published.show(published_rows(serial_s=25.4))
    assert not published.show(published_rows(serial_s=25.6))


def test_parallel_work_must_be_ahead_of_the_rival() -> None:
    row = published.Row("KEY", 100, [2.01], [2.0])
    assert not published.show([row._asdict()])


def test_a_rate_into_a_table_is_judged_by_the_median_of_its_rounds() -> None:
    row = landing.Row("JSON decoded", [160.0, 300.0, 140.0], [100.0, 100.0, 100.0], 1.5)
    assert landing.show([row._asdict()])
    assert not landing.show([row._replace(least=1.7)._asdict()])


def test_a_time_without_a_limit_is_told_and_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    told = lifecycle.Row(lifecycle.RELOAD, [90.0], None)
    slow = lifecycle.Row(lifecycle.START, [3.2, 2.0, 3.1], 3.0)
    assert lifecycle.show([told._asdict()])
    assert not lifecycle.show([told._asdict(), slow._asdict()])
    assert "3.10 s, and must be at most 3 s" in capsys.readouterr().out


@pytest.mark.parametrize(("beside_ms", "holds"), [(40.0, False), (990.0, True)])
def test_who_lets_others_wait_for_a_slow_record_is_told(*, beside_ms: float, holds: bool) -> None:
    assert latency.Row("some", 5.0, 20.0, 40.0, beside_ms).holds_others is holds


def line(name: str) -> dict:
    return {"name": name, "what": f"the line {name}", "records_per_second": 5_000}


def test_each_plot_shows_what_was_measured(tmp_path: Path) -> None:
    interval = {"commit_interval": "50ms", "median_ms": 5, "entries_per_second": 9, "repeated": 1}
    guarantees = ("at least once", "exactly once")
    report = {
        "contenders": [line(names[0]) for names in plots._PANELS.values()],
        "intervals": [{"guarantee": each, **interval} for each in guarantees],
        "published": published_rows(serial_s=25.0),
    }
    for kind, shown in {
        "rates": "the line kworker-decoded",
        "intervals": "exactly once",
        "published": "Parallel Consumer",
    }.items():
        plots.PLOTS[kind](report, tmp_path / "plot.svg")
        assert f">{shown}<" in (tmp_path / "plot.svg").read_text()


@pytest.mark.parametrize(
    ("thousands", "told"), [(1_234.5, "1,234"), (36.6, "37"), (0.41, "0.41"), (4.44, "4.4")]
)
def test_a_slow_rival_has_a_rate_in_the_plot(thousands: float, told: str) -> None:
    assert plots._thousands(thousands) == told
