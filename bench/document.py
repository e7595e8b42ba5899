"""Writes `docs/performance.md`, its plots and the table of README.md from what was measured.

`python -m bench.document REPORT.json SCALE.json`: the files that `make bench` and `make scale`
wrote. The page is `bench/performance.md`, with a table in the place of each `{{ name }}`. The
figures are kept beside the plots: without arguments, page and plots are made of them again.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import contenders, landing, latency, lifecycle, plots, published, tables
from bench.place import ROOT

Figures = Mapping[str, Any]
Cells = Sequence[str]

TEMPLATE = ROOT / "bench" / "performance.md"
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
KEPT = "report.json"  # in the folder of the plots, with both reports
PLOTTED = ("rates", "intervals", "published", "scale")
BEGIN, END = "<!-- made by bench.document -->", "<!-- so far -->"
_BLOCK = re.compile(r"^\{\{ ([a-z-]+) \}\}$", re.MULTILINE)
_MB, _MIB = 1_000_000, 1 << 20
_DIGITS = 3  # of a rate: the others are noise

# The table of README: contenders, and the one that the others are compared with.
_SHOWN = (
    ("poll", "kworker"),
    ("pool", "kworker"),
    ("quix", "kworker"),
    ("arroyo", "kworker"),
    ("parallel", "kworker"),
    ("kworker", ""),
    ("quix-decoded", "kworker-decoded"),
    ("parallel-decoded", "kworker-decoded"),
    ("kworker-decoded", ""),
    ("quix-exactly-once", "kworker-decoded-exactly-once"),
    ("parallel-exactly-once", "kworker-decoded-exactly-once"),
    ("kworker-decoded-exactly-once", ""),
    ("threads", "kworker-wait"),
    ("parallel-wait", "kworker-wait"),
    ("kworker-wait", ""),
)


def page(report: Figures, template: str) -> str:
    """Returns the text of the page. Raises LookupError if the template lacks a block, or has more.

    `report` has what `make bench` wrote, and under `scale` what `make scale` did.
    """
    wanted = _BLOCK.findall(template)
    if sorted(wanted) != sorted(BLOCKS):
        raise LookupError(f"the template's blocks differ: {sorted(set(wanted) ^ set(BLOCKS))}")
    return _BLOCK.sub(lambda found: BLOCKS[found[1]](report), template)


def with_table(readme: str, report: Figures) -> str:
    """Returns README's text with a new table between its two marks."""
    before, rest = readme.split(f"{BEGIN}\n")
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{_readme_table(report)}\n{END}{after}"


def rate(per_second: float) -> str:
    """A rate with three digits: 1,020,000 or 6.1."""
    digits = _DIGITS - len(str(int(per_second)))
    return f"{round(per_second, digits):,.{max(0, digits)}f}"


def _table(head: Cells, rows: Sequence[Cells]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _by_name(report: Figures) -> dict[str, Figures]:
    return {line["name"]: line for line in report["contenders"]}


def _what(line: Figures) -> str:
    return f"**{line['what']}**" if line["name"].startswith("kworker") else line["what"]


def _readme_table(report: Figures) -> str:
    found, rows = _by_name(report), []
    for name, ours in _SHOWN:
        if name in found:
            ratio = f"{found[ours]['ratios'][name]:.2f} ×" if ours else ""
            rows.append([_what(found[name]), rate(found[name]["records_per_second"]), ratio])
    return _table(["", "records/s", "kworker is"], rows)


# -- blocks -----------------------------------------------------------------------------


def _size(report: Figures) -> str:
    size = report["size"]
    return (
        f"Measured at commit `{report['commit']}` with {report['cpus']} CPUs, shared by the"
        f" broker. A figure is the median of {size['rounds']} rounds, or of"
        f" {size['untargeted_rounds']} where no ratio is wanted; a ratio is the median of the"
        f" ratios of the rounds. There are up to {size['records']:,} records, and fewer where a"
        " contender is slow."
    )


def _versions(report: Figures) -> str:
    versions = [f"- {version}" for version in sorted(set(report["versions"].values()))]
    absent = [f"- left out: {name}: {why}" for name, why in report["absent"].items()]
    return "\n".join(versions + absent)


def _rows_of(group: Sequence[contenders.Contender]) -> Callable[[Figures], str]:
    """The block for contenders that are compared with each other."""

    def block(report: Figures) -> str:
        found = _by_name(report)
        lines = [found[each.name] for each in group if each.name in found]
        ratios: dict[str, list[str]] = {line["name"]: [] for line in lines}
        for line in lines:
            for other, ratio in line["ratios"].items():
                if line["name"].startswith("kworker"):
                    ratios.setdefault(other, []).append(f"{ratio:.2f} × ({line['what']})")
        rows = [
            [
                _what(line),
                rate(line["records_per_second"]),
                f"{rate(min(line['rounds']))} … {rate(max(line['rounds']))}",
                f"{line['peak_bytes'] / _MIB:,.0f}",
                "<br>".join(ratios[line["name"]]),
            ]
            for line in lines
        ]
        return _table(["", "records/s", "rounds", "MiB", "kworker beside it"], rows)

    return block


def _latency(report: Figures) -> str:
    rows = []
    for each in report["latency"]:
        row = latency.Row(**each)
        delays = (row.median_ms, row.p99_ms, row.worst_ms, row.beside_ms)
        held = "yes" if row.holds_others else "no"
        rows.append([row.name, *(f"{delay:,.0f} ms" for delay in delays), held])
    slow = "worst beside a record of 1 s"
    return _table(["", "median", "99 %", "worst", slow, "others wait for it"], rows)


def _lifecycle(report: Figures) -> str:
    rows = []
    for each in report["lifecycle"]:
        row = lifecycle.Row(**each)
        rounds = f"{min(row.seconds):.2f} … {max(row.seconds):.2f} s"
        rows.append([row.what, f"{median(row.seconds):.2f} s", rounds])
    return _table(["", "median", "rounds"], rows)


def _intervals(report: Figures) -> str:
    rows = [
        [
            row["guarantee"],
            row["commit_interval"],
            rate(row["records_per_second"]),
            f"{row['median_ms']:,.0f} ms",
            f"{row['p99_ms']:,.0f} ms",
            f"{row['entries_per_second']:,.0f}",
            f"{row['repeated']:,.0f}",
        ]
        for row in report["intervals"]
    ]
    head = ["", "`commit_interval`", "records/s", "median", "99 %", "entries/s", "repeated"]
    return _table(head, rows)


def _published(report: Figures) -> str:
    rows = []
    for each in report["published"]:
        row = published.Row(**each)
        seconds = [f"{median(found):.2f} s" for found in (row.theirs_s, row.ours_s)]
        case = f"{row.ordering.lower()}, {row.keys:,} keys"
        rows.append([case, *seconds, f"{row.ratio:.2f} × as fast"])
    return _table(["", "Parallel Consumer", "kworker", ""], rows)


def _landing(report: Figures) -> str:
    rows = []
    for each in report["landing"]:
        row = landing.Row(**each)
        rates = [rate(median(found)) for found in (row.theirs, row.ours)]
        rows.append([row.what, *rates, f"{row.ratio:.2f} ×"])
    return _table(["rows/s", "Python UDF", "kworker", ""], rows)


def _tables(report: Figures) -> str:
    rows = []
    for name, rounds in report["tables"]["rounds"].items():
        figures = [tables.Figures(**each) for each in rounds]
        cold, empty = (median(getattr(f, w) for f in figures) for w in ("cold_s", "empty_s"))
        warm = rate(median(each.warm for each in figures))
        rows.append([name, f"{cold:.1f} s", f"{empty:.1f} s", warm])
    ratios = {each["what"]: f"{each['ratio']:.2f} ×" for each in report["tables"]["targets"]}
    rows.append(
        ["", *(ratios[what] for what in ("a backlog, cold", "nothing new", "warm batches"))]
    )
    return _table(["", "a backlog, cold", "nothing new", "warm batches, results/s"], rows)


def _scale(report: Figures) -> str:
    rows = [
        [
            sweep,
            f"{point['size']:,}",
            f"{1e6 * point['seconds'] / point['records']:.2f} µs",
            *(f"{size / _MB:,.0f} MB" for size in point["peaks"].values()),
        ]
        for sweep, points in report["scale"]["points"].items()
        for point in points
    ]
    return _table(["", "point", "a record", "worker", "delay", "supervisor"], rows)


def _computed(report: Figures) -> str:
    rows = [
        [
            f"{row['hosts']:,}",
            f"{row['workers']:,}",
            rate(row["no_op"]),
            rate(row["waiting"]),
        ]
        for row in report["scale"]["computed"]
    ]
    return _table(["hosts", "workers", "no-op, records/s", "10 ms in 64 threads"], rows)


def _targets(report: Figures) -> str:
    rows = [
        [what, wanted, got, "yes" if met else "**no**"] for what, wanted, got, met in _told(report)
    ]
    return _table(["", "wanted", "reached", "met"], rows)


Told = tuple[str, str, str, bool]


def _told(report: Figures) -> Iterator[Told]:
    """Yields each target: what, the limit, what was reached, and whether it is met."""
    found = _by_name(report)
    for each in report["targets"]:
        what = f"{found[each['name']]['what']}, beside {found[each['to']]['what']}"
        met = each["ratio"] >= each["least"]
        yield what, f"≥ {each['least']:g} ×", f"{each['ratio']:.2f} ×", met
    for row in map(_as(landing.Row), report["landing"]):
        what = f"into a table, beside a Python UDF: {row.what}"
        yield what, f"≥ {row.least:g} ×", f"{row.ratio:.2f} ×", row.ratio >= row.least
    for row in map(_as(published.Row), report["published"]):
        what = f"Parallel Consumer's table: {row.ordering.lower()}, {row.keys:,} keys"
        yield what, f"≥ {row.least:g} ×", f"{row.ratio:.2f} ×", row.ratio >= row.least
    for each in report["tables"]["targets"]:
        what = f"the Spark job beside pyspark alone: {each['what']}"
        yield what, f"≥ {each['bound']:.2f} ×", f"{each['ratio']:.2f} ×", each["met"]
    for row in map(_as(lifecycle.Row), report["lifecycle"]):
        if row.most is not None:
            seconds = median(row.seconds)
            yield row.what, f"≤ {row.most:g} s", f"{seconds:.2f} s", seconds <= row.most
    for met, text in report["scale"]["verdicts"]:
        what, _, reached = text.partition(": ")
        yield f"scale: {what}", "", reached, met


def _as(kind: Callable[..., Any]) -> Callable[[Figures], Any]:
    return lambda each: kind(**each)


BLOCKS: dict[str, Callable[[Figures], str]] = {
    "size": _size,
    "versions": _versions,
    "no-op": _rows_of(contenders.NO_OP),
    "results": _rows_of(contenders.RESULTS),
    "threads": _rows_of(contenders.WAITING),
    "tasks": _rows_of(contenders.TASKS_WAITING),
    "disturbances": _rows_of(contenders.DISTURBANCES),
    "claims": _rows_of(contenders.CLAIMS),
    "latency": _latency,
    "lifecycle": _lifecycle,
    "intervals": _intervals,
    "published": _published,
    "landing": _landing,
    "tables": _tables,
    "scale": _scale,
    "computed": _computed,
    "targets": _targets,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="what `make bench ARGS='--json FILE'` wrote, and what `make scale` did; without them"
        " the figures of the page that is there",
    )
    options = parser.parse_args(arguments)
    folder = PAGE.with_suffix("")
    kept = folder / KEPT
    match options.files:
        case []:
            report = json.loads(kept.read_text())
        case [bench, scale]:
            report = json.loads(bench.read_text()) | {"scale": json.loads(scale.read_text())}
            folder.mkdir(exist_ok=True)
            kept.write_text(json.dumps(report, indent=1) + "\n")
        case _:
            parser.error("give both files, or none")
    for kind in PLOTTED:
        plots.PLOTS[kind](report, folder / f"{kind}.svg")
    PAGE.write_text(page(report, TEMPLATE.read_text()))
    README.write_text(with_table(README.read_text(), report))


if __name__ == "__main__":
    main()
