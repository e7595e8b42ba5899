"""Writes `docs/performance.md`, its plots, README's figures and the rates of `kworker plan`.

`python -m bench.document REPORT.json SCALE.json`: the files that `make bench` and `make scale`
wrote. The page is `bench/performance.md`, with a table in the place of each `{{ name }}`. The
figures are kept beside the plots: without arguments, all is made of them again. Ends with an error,
and writes nothing, if a target is not met and `bench/reasons.py` does not say why.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import plots, readme
from bench.blocks import BLOCKS, Figures
from bench.place import ROOT
from bench.verdicts import Unexplained

TEMPLATE = ROOT / "bench" / "performance.md"
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
CAPACITY = ROOT / "kworker" / "core" / "capacity.py"
KEPT = "report.json"  # in the folder of the plots, with both reports
PLOTTED = ("rates", "intervals", "published", "scale")
_BLOCK = re.compile(r"^\{\{ ([a-z-]+) \}\}$", re.MULTILINE)


def page(report: Figures, template: str) -> str:
    """Returns the text of the page.

    `report` has what `make bench` wrote, and under `scale` what `make scale` did. Raises
    LookupError if the template lacks a block, or has more, and Unexplained if a target that is not
    met has no reason.
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
        case [bench, scale]:
            report = json.loads(bench.read_text()) | {"scale": json.loads(scale.read_text())}
        case _:
            parser.error("give both files, or none")
    try:
        _write(report, folder)
    except Unexplained as error:
        sys.exit(str(error))


def _write(report: Figures, folder: Path) -> None:
    """Writes all files. Makes their texts first, so that a report that is refused changes none."""
    texts = {
        folder / KEPT: json.dumps(report, indent=1) + "\n",
        PAGE: page(report, TEMPLATE.read_text()),
        README: readme.with_figures(README.read_text(), report),
        CAPACITY: readme.with_rates(CAPACITY.read_text(), report),
    }
    folder.mkdir(exist_ok=True)
    for kind in PLOTTED:
        plots.PLOTS[kind](dict(report), folder / f"{kind}.svg")
    for path, text in texts.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
