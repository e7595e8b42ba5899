"""Plots of what a benchmark has written as JSON: `python -m bench.plots REPORT PLOT.svg`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Told apart without colour, too, by their dashes; the colours are Okabe and Ito's.
_STYLES = (("#0072B2", ":"), ("#D55E00", "--"), ("#009E73", "-"))
_MIB = 1 << 20


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="written by `make backpressure ARGS=--json=FILE`")
    parser.add_argument("plot", type=Path, help="an .svg or .png to write")
    options = parser.parse_args(arguments)
    backpressure(json.loads(options.report.read_text()), options.plot)


if __name__ == "__main__":
    main()
