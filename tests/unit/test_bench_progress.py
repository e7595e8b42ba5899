"""A run of the benchmark that goes on with the figures of an interrupted one, or must not."""

import json
from pathlib import Path

import pytest

from bench import progress as progress_module
from bench.disturbance import LoopTimes
from bench.progress import Progress


@pytest.fixture(autouse=True)
def commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree without changes, whatever this checkout has."""
    monkeypatch.setattr(progress_module, "_commit", lambda: "abc1234")


def test_an_interrupted_benchmark_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "LOOP_TIMES", LoopTimes())
    file, size = tmp_path / "figures", {"rounds": 5, "intervals": ("50ms", "2s")}
    progress = Progress(file, size)
    progress.rates["kworker"] = [1.5]
    progress.stolen["kworker"] = [0.01]
    progress.loop_us = {"best": 200.0, "kept": [250.5]}
    assert progress.part("tables", lambda: {"cold": 2}) == {"cold": 2}
    monkeypatch.setattr(progress_module, "LOOP_TIMES", LoopTimes())
    again = Progress(file, size)
    assert again.loop_us == {"best": 200.0, "kept": [250.5]}
    assert (again.rates, again.stolen) == ({"kworker": [1.5]}, {"kworker": [0.01]})
    assert again.part("tables", lambda: pytest.fail("it was measured")) == {"cold": 2}
    assert f"going on with 2 measurements of {file}" in capsys.readouterr().out


def test_what_was_left_out_is_tried_again_after_an_interruption(tmp_path: Path) -> None:
    """The network may answer by then; until then the file says why."""
    file = tmp_path / "figures"
    progress = Progress(file, {})
    progress.absent["quix"] = "no network"
    progress.save()
    assert json.loads(file.read_text())["absent"] == {"quix": "no network"}
    assert Progress(file, {}).absent == {}


def test_the_time_of_interrupted_runs_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed or was interrupted has taken its time, too."""
    moments = iter([100.0, 107.5, 300.0, 302.0, 400.0, 401.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(moments))
    progress = Progress(tmp_path / "figures", {})
    with pytest.raises(KeyboardInterrupt), progress.timed("kworker"):
        raise KeyboardInterrupt
    again = Progress(tmp_path / "figures", {})
    with again.timed("kworker"):
        pass
    again.part("tables", dict)
    assert Progress(tmp_path / "figures", {}).seconds == {"kworker": 9.5, "tables": 1.0}


def test_a_benchmark_does_not_go_on_with_other_figures(tmp_path: Path) -> None:
    """A median of two sizes or commits would be that of neither."""
    file = tmp_path / "figures"
    Progress(file, {"rounds": 5}).save()
    with pytest.raises(SystemExit, match=r"has figures of size \{'rounds': 5\}, and this is"):
        Progress(file, {"rounds": 1})


def test_a_benchmark_does_not_go_on_in_a_tree_with_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sets of changes have the same name."""
    monkeypatch.setattr(progress_module, "_commit", lambda: "abc1234-dirty")
    file = tmp_path / "figures"
    Progress(file, {}).save()
    with pytest.raises(SystemExit, match="since the tree has changes"):
        Progress(file, {})


@pytest.mark.parametrize("name", ["loop_us", "parts"])
def test_a_benchmark_does_not_go_on_with_an_older_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "figures"
    Progress(file, {}).save()
    kept = json.loads(file.read_text())
    del kept[name]
    file.write_text(json.dumps(kept))
    with pytest.raises(SystemExit, match=f"older benchmark, without {name}: give another file"):
        Progress(file, {})
