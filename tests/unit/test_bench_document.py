"""The page of the benchmark: made of its figures, whole, and the same from the same ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import contenders, document, landing, latency, lifecycle, published, tables
from bench.scale import ScalePoint


def report() -> dict[str, Any]:
    """As the two benchmarks write it, each figure another; one target of the first is not met."""
    lines = [
        {
            "name": each.name,
            "what": each.what,
            "records_per_second": 10_000 + number,
            "rounds": [10_000 + number, 9_000, 11_000],
            "peak_bytes": 100 << 20,
            "ratios": dict.fromkeys(each.beside, 1.25),
        }
        for number, each in enumerate(contenders.CONTENDERS)
    ]
    targets = [
        {"name": name, "to": other, "least": least, "ratio": least + (0.1 if number else -0.1)}
        for number, (name, other, least) in enumerate(contenders.TARGETS)
    ]
    interval = {"commit_interval": "50ms", "records_per_second": 1, "median_ms": 5, "p99_ms": 6}
    figures = [tables.Figures(15.0, 5.0, 50_000)._asdict()]
    point = ScalePoint(1_000, 1_000, 0.003, {"worker": 120_000_000}, 0.0)._asdict()
    return {
        "commit": "abc1234",
        "cpus": 2,
        "size": {"rounds": 3, "untargeted_rounds": 2, "records": 2_000_000},
        "versions": {"quix": "Quix Streams 3", "parallel-consumer": "Parallel Consumer 0.5"},
        "absent": {"celery": "no broker"},
        "contenders": lines,
        "targets": targets,
        "latency": [latency.Row("some", 5.0, 20.0, 40.0, 990.0)._asdict()],
        "lifecycle": [lifecycle.Row(lifecycle.START, [3.2, 2.0, 3.1], 3.0)._asdict()],
        "intervals": [
            {"guarantee": each, **interval, "entries_per_second": 9, "repeated": 1}
            for each in ("at least once", "exactly once")
        ],
        "published": [published.Row("KEY", 1, [24.0], [25.0])._asdict()],
        "landing": [landing.Row("JSON decoded", [200.0], [100.0], 1.5)._asdict()],
        "tables": {
            "rounds": {"pyspark": figures, "kworker": figures},
            "targets": [tables._target(what, [1.125])._asdict() for what in tables.BOUNDS],
        },
        "scale": {
            "points": {"records": [point, point | {"size": 5_000}], "keys": [point]},
            "verdicts": [[True, "records: at 5,000 a record costs 1.02 × the least"]],
            "computed": [{"hosts": 100, "workers": 6_200, "no_op": 2e9, "waiting": 3.9e7}],
        },
    }


def test_the_page_has_each_line_of_the_benchmark_and_no_open_block() -> None:
    page = document.page(report(), document.TEMPLATE.read_text())
    assert "{{" not in page
    assert [each.what for each in contenders.CONTENDERS if each.what not in page] == []
    for shown in (
        "commit `abc1234` with 2 CPUs",
        "left out: celery: no broker",
        "| some | 5 ms | 20 ms | 40 ms | 990 ms | yes |",
        f"| {lifecycle.START} | ≤ 3 s | 3.10 s | **no** |",
        "| records | 5,000 | 3.00 µs | 120 MB |",
        "| 100 | 6,200 | 2,000,000,000 | 39,000,000 |",
    ):
        assert shown in page, shown


def test_each_target_is_told_with_what_was_reached() -> None:
    told = list(document._told(report()))
    wanted = len(contenders.TARGETS) + 1 + 1 + len(tables.BOUNDS) + 1 + 1
    assert len(told) == wanted
    assert [what for what, *_, met in told if not met] == [
        "kworker, no-op, key order, commits, beside raw poll(), tuned",
        lifecycle.START,
    ]


@pytest.mark.parametrize("template", ["{{ no-op }}", "{{ no-op }}\n{{ unheard-of }}"])
def test_a_page_without_all_tables_is_refused(template: str) -> None:
    with pytest.raises(LookupError, match="the template's blocks differ"):
        document.page(report(), template)


def test_only_the_marked_table_of_the_readme_is_replaced() -> None:
    readme = f"above\n{document.BEGIN}\nold\n{document.END}\nbelow\n"
    made = document.with_table(readme, report())
    assert made.startswith("above\n")
    assert made.endswith("below\n")
    assert "old" not in made
    assert "| Quix Streams | 10,000 | 1.25 × |" in made
    assert document.with_table(made, report()) == made


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
    assert document.rate(per_second) == told


def test_page_plots_and_figures_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And from the kept figures they can be made again."""
    readme = tmp_path / "README.md"
    readme.write_text(f"{document.BEGIN}\n{document.END}")
    monkeypatch.setattr(document, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(document, "README", readme)
    measured = report()
    scale = measured.pop("scale")
    (tmp_path / "bench.json").write_text(json.dumps(measured))
    (tmp_path / "scale.json").write_text(json.dumps(scale))
    document.main([str(tmp_path / "bench.json"), str(tmp_path / "scale.json")])
    folder = tmp_path / "performance"
    made = {path: path.read_bytes() for path in [*folder.iterdir(), tmp_path / "performance.md"]}
    for path in made:
        if path.name != document.KEPT:
            path.unlink()
    document.main([])
    assert {path: path.read_bytes() for path in made} == made
    assert {path.name for path in folder.iterdir()} == {
        document.KEPT,
        *(f"{kind}.svg" for kind in document.PLOTTED),
    }
    kept = json.loads((folder / document.KEPT).read_text())
    assert (tmp_path / "performance.md").read_text() == document.page(
        kept, document.TEMPLATE.read_text()
    )
    assert ">records<" in (folder / "scale.svg").read_text()


def test_one_file_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        document.main(["bench.json"])
    assert "give both files, or none" in capsys.readouterr().err
