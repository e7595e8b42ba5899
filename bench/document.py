"""Writes `docs/performance.md`, its plots, README's figures and the rates of `kworker plan`.

`python -m bench.document REPORT.json SCALE.json`: the files that `make bench` and `make scale`
wrote. The page is `bench/performance.md`, with a table in the place of each `{{ name }}`. The
figures are kept beside the plots: without arguments, all is made of them again. Ends with an error,
and writes nothing, unless both files are of full runs at the same commit, without other changes; or
if a target is not met and `bench/reasons.py` does not say why, as read at that commit.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import plots, readme, run, scale
from bench.blocks import BLOCKS, Figures
from bench.contenders import CONTENDERS
from bench.place import ROOT
from bench.verdicts import Unexplained

TEMPLATE = ROOT / "bench" / "performance.md"
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
CAPACITY = ROOT / "kworker" / "core" / "capacity.py"
KEPT = "report.json"  # in the folder of the plots, with both reports
PLOTTED = ("rates", "intervals", "published", "scale")
_BLOCK = re.compile(r"^\{\{ ([a-z-]+) \}\}$", re.MULTILINE)
_OF_BENCH = (
    *("commit", "cpus", "size", "versions", "absent", "seconds", "contenders", "targets"),
    *run.PARTS,
)
_OF_SCALE = ("commit", "size", "points", "left_out", "verdicts", "computed", "assumptions")


def page(report: Figures, template: str) -> str:
    """Returns the text of the page.

    `report` has what `make bench` wrote, and under `scale` what `make scale` did. Raises
    LookupError if the template lacks a block, or has more, and Unexplained if a target that is not
    met has no reason that was read at the report's commit.
    """
    wanted = _BLOCK.findall(template)
    if sorted(wanted) != sorted(BLOCKS):
        raise LookupError(f"the template's blocks differ: {sorted(set(wanted) ^ set(BLOCKS))}")
    return _BLOCK.sub(lambda found: BLOCKS[found[1]](report), template)


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
    match options.files:
        case []:
            report = json.loads((folder / KEPT).read_text())
        case [first, second]:
            bench, growth = (json.loads(file.read_text()) for file in (first, second))
            if why := next(refusals(bench, growth), ""):
                sys.exit(why)
            report = bench | {"scale": growth}
        case _:
            parser.error("give both files, or none")
    try:
        _write(report, folder)
    except Unexplained as error:
        sys.exit(str(error))


def refusals(bench: Figures, growth: Figures) -> Iterator[str]:
    """Yields why no page is made of what `make bench` and `make scale` wrote, a line for each.

    Take the first only: those after it may need what it says is lacking.
    """
    for command, lacking in (("bench", _lacking(bench)), ("scale", _lacking_growth(growth))):
        if names := ", ".join(lacking):
            yield f"the report of `make {command}` lacks {names}: give one of a full run"
    for command, report, size in (
        ("bench", bench, vars(run.FULL)),
        ("scale", growth, scale.FULL_SIZE),
    ):
        if differing := ", ".join(_differing(report["size"], size)):
            yield f"the report of `make {command}` is not of a full run: it has {differing}"
    commits = bench["commit"], growth["commit"]
    if commits[0] != commits[1]:
        yield f"the reports are of the commits {' and '.join(commits)}: give two of the same one"
    if commits[0].endswith("-dirty"):
        yield f"the reports are of {commits[0]}: measure both again with no uncommitted change"


def _lacking(bench: Figures) -> Iterator[str]:
    """Yields the names of parts, and then of contenders that nothing says are absent."""
    yield from (name for name in _OF_BENCH if name not in bench)
    if "contenders" in bench and "absent" in bench:
        accounted = {line["name"] for line in bench["contenders"]} | bench["absent"].keys()
        yield from (each.name for each in CONTENDERS if not {each.name, each.rival} & accounted)


def _lacking_growth(growth: Figures) -> Iterator[str]:
    """Yields the names of parts, and then of sweeps."""
    yield from (name for name in _OF_SCALE if name not in growth)
    yield from (name for name in scale.FULL if name not in growth.get("points", scale.FULL))


def _differing(found: Mapping[str, Any], full: Mapping[str, Any]) -> Iterator[str]:
    """Yields each size that is not as in a full run, with both values."""
    for name, wanted in json.loads(json.dumps(full)).items():
        if found.get(name) != wanted:
            yield f"{name} {found.get(name)} instead of {wanted}"


def _write(report: Figures, folder: Path) -> None:
    """Writes all files. Makes each first, so that a report that is refused changes none."""
    texts = {
        folder / KEPT: json.dumps(report, indent=1) + "\n",
        PAGE: page(report, TEMPLATE.read_text()),
        README: readme.with_figures(README.read_text(), report),
        CAPACITY: readme.with_rates(CAPACITY.read_text(), report),
    }
    made = {path: text.encode() for path, text in texts.items()} | _drawn(report, folder)
    folder.mkdir(exist_ok=True)
    for path, content in made.items():
        path.write_bytes(content)


def _drawn(report: Figures, folder: Path) -> dict[Path, bytes]:
    """Returns the plots, by the path that each gets in the folder."""
    with tempfile.TemporaryDirectory() as beside:
        for kind in PLOTTED:
            plots.PLOTS[kind](dict(report), Path(beside) / f"{kind}.svg")
        return {folder / path.name: path.read_bytes() for path in Path(beside).iterdir()}


if __name__ == "__main__":
    main()
