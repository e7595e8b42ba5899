"""Plots of what a benchmark has written as JSON: `python -m bench.plots KIND REPORT PLOT.svg`."""

import argparse
import json
from collections.abc import Sequence
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

# Told apart without colour, too, by their dashes; the colours are Okabe and Ito's.
_STYLES = (("#0072B2", ":"), ("#D55E00", "--"), ("#009E73", "-"))
_MIB = 1 << 20
_SHORT = EngFormatter(sep="")


def backpressure(report: dict[str, Any], plot: Path) -> None:
    """Draws memory, and messages in memory, of the three acts over time."""
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    memory, in_memory = figure.subplots(2, 1, sharex=True)
    for act, (colour, dash) in zip(report["acts"], _STYLES, strict=True):
        at = [sample["at_s"] for sample in act["samples"]]
        style = {"color": colour, "linestyle": dash, "linewidth": 2, "label": act["name"]}
        mebibytes = [sample["bytes"] / _MIB for sample in act["samples"]]
        memory.plot(at, mebibytes, **style)
        in_memory.plot(at, [sample["in_memory"] for sample in act["samples"]], **style)
        if act["exit_code"]:
            for axes, line in ((memory, mebibytes), (in_memory, _in_memory(act))):
                axes.plot(at[-1], line[-1], "x", color=colour, markersize=10, markeredgewidth=3)
    memory.axhline(report["limit_bytes"] / _MIB, color="black", linewidth=1)
    memory.annotate("limit", (0, report["limit_bytes"] / _MIB), va="bottom")
    _name(memory, "memory, MiB")
    _name(in_memory, "messages in memory")
    in_memory.set_xlabel("seconds; × is where the kernel killed it")
    memory.legend()
    _save(figure, plot)


def _in_memory(act: dict[str, Any]) -> list[int]:
    return [sample["in_memory"] for sample in act["samples"]]


def _name(axes: Axes, what: str) -> None:
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, plot: Path) -> None:
    # With fixed ids and without the rest, so that the same figures make the same file.
    nameless = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": "kworker", "svg.fonttype": "none"}):
        figure.savefig(plot, metadata=nameless if plot.suffix == ".svg" else None)


# What people use instead, in one panel each: names of contenders.
_PANELS = {
    "a handler that does nothing": (
        "poll",
        "kworker",
        "parallel-unordered",
        "quix",
        "aiokafka",
        "arroyo",
        "parallel",
        "pool",
        "pool-waits",
        "faststream-batches",
        "celery",
    ),
    "JSON decoded, and a result": (
        "kworker-decoded",
        "quix-decoded",
        "aiokafka-decoded",
        "arroyo-decoded",
        "faststream-decoded",
        "parallel-decoded",
    ),
    "the same exactly once": (
        "kworker-decoded-exactly-once",
        "quix-exactly-once",
        "parallel-exactly-once",
    ),
}
_OURS, _OTHERS = "#0072B2", "#999999"


def rates(report: dict[str, Any], plot: Path) -> None:
    """Draws the records a second of kworker and of what people use instead."""
    found = {line["name"]: line for line in report["contenders"]}
    panels = {
        what: [found[name] for name in names if name in found] for what, names in _PANELS.items()
    }
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    heights = [len(lines) for lines in panels.values()]
    drawn = figure.subplots(len(panels), 1, height_ratios=heights)
    for axes, (what, lines) in zip(drawn, panels.items(), strict=True):
        names = [line["what"] for line in lines]
        thousands = [line["records_per_second"] / 1000 for line in lines]
        colours = [_OURS if line["name"].startswith("kworker") else _OTHERS for line in lines]
        bars = axes.barh(names, thousands, color=colours)
        axes.bar_label(bars, fmt=_thousands, padding=3)
        axes.invert_yaxis()
        axes.set_title(what, loc="left", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(
        "thousand records a second; one process each, but Celery has two, and Redis",
        fontsize="medium",
    )
    _save(figure, plot)


def _thousands(count: float) -> str:
    """Two digits at least, so that a slow rival's figure is not 0."""
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"


# Of a commit interval, for the brokers.
_COSTS = {
    "requests_per_second": "commit requests/s",
    "entries_per_second": "entries/s of offsets",
}
_LATENCY = "median_ms"


def intervals(report: dict[str, Any], plot: Path) -> None:
    """Draws what a commit interval costs against the results that a kill repeats, and the latency.

    Each point is an interval. A cost that some row does not have, as of an earlier version, is left
    out.
    """
    rows = report["intervals"]
    costs = [cost for cost in _COSTS if all(cost in row for row in rows)]
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    panels: Any = [costs, [_LATENCY] * len(costs)]
    drawn = figure.subplot_mosaic(panels)
    for guarantee, (colour, dash), above in (
        ("at least once", _STYLES[0], False),
        ("exactly once", _STYLES[1], True),  # it costs more
    ):
        own = [row for row in rows if row["guarantee"] == guarantee]
        line: dict[str, Any] = {"color": colour, "linestyle": dash, "marker": "o"}
        for cost in costs:
            _trade_off(drawn[cost], own, cost, line, above=above)
        names = [row["commit_interval"] for row in own]
        drawn[_LATENCY].plot(names, [row[_LATENCY] for row in own], label=guarantee, **line)
    for cost in costs:
        _name(drawn[cost], _COSTS[cost])
        drawn[cost].set_xlabel("results that came twice after a kill")
    _name(drawn[_LATENCY], "median latency, ms")
    drawn[_LATENCY].set_xlabel("commit_interval, at 1,000 records a second and handlers of 50 ms")
    drawn[_LATENCY].legend()
    _save(figure, plot)


def _trade_off(
    axes: Axes, rows: Sequence[dict[str, Any]], cost: str, line: dict[str, Any], *, above: bool
) -> None:
    """Draws a cost against the repeated results, with each point's interval above it or below."""
    axes.set_xscale("symlog", linthresh=10)  # from none to thousands
    axes.set_yscale("symlog", linthresh=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    axes.margins(x=0.15)  # for the names
    axes.plot([row["repeated"] for row in rows], [row[cost] for row in rows], **line)
    for row in rows:
        axes.annotate(
            row["commit_interval"],
            (row["repeated"], row[cost]),
            (6, 4) if above else (-6, -12),
            ha="left" if above else "right",
            textcoords="offset points",
            color=line["color"],
            fontsize="small",
        )


def published(report: dict[str, Any], plot: Path) -> None:
    """Draws Parallel Consumer's own table, as measured here."""
    rows = report["published"]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    names = [
        f"{row['ordering'].lower()}\n{row['keys']:,}"
        if row["ordering"] == "KEY"
        else row["ordering"].lower()
        for row in rows
    ]
    for whose, label, (colour, dash) in (
        ("theirs_s", "Parallel Consumer", _STYLES[1]),
        ("ours_s", "kworker", _STYLES[0]),
    ):
        seconds = [nan if row.get("left_out") else median(row[whose]) for row in rows]
        axes.plot(names, seconds, "o", linestyle=dash, color=colour, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("seconds for 10,000 records")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, plot)


def scale(report: dict[str, Any], plot: Path) -> None:
    """Draws what a record costs as what is around it grows: a panel for each sweep."""
    sweeps = report["scale"]["points"]
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    drawn = iter(figure.subplots(2, (len(sweeps) + 1) // 2, squeeze=False).flat)
    for (sweep, points), axes in zip(sweeps.items(), drawn, strict=False):
        sizes = [point["size"] for point in points]
        costs = [1e6 * point["seconds"] / point["records"] for point in points]
        axes.plot(sizes, costs, "o-", color=_OURS)
        axes.set_xscale("log")
        axes.set_xticks(sizes, [_SHORT(size) for size in sizes], fontsize="x-small")
        axes.minorticks_off()
        axes.set_title(sweep, loc="left", fontsize="medium")
        _name(axes, "µs a record")
        axes.set_ylim(top=1.1 * max(costs))
    for axes in drawn:  # without a sweep
        axes.set_axis_off()
    _save(figure, plot)


PLOTS = {
    "backpressure": backpressure,
    "rates": rates,
    "intervals": intervals,
    "published": published,
    "scale": scale,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=PLOTS)
    parser.add_argument("report", type=Path, help="written by a benchmark's --json")
    parser.add_argument("plot", type=Path, help="an .svg or .png to write")
    options = parser.parse_args(arguments)
    PLOTS[options.kind](json.loads(options.report.read_text()), options.plot)


if __name__ == "__main__":
    main()
