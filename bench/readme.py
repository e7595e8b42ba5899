"""README's figures, and those that `kworker plan` computes with: of one run.

Both have the same rates, and `tests/unit/core/test_capacity.py` compares them.
"""

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from bench.markdown import counted, rate, rounded, table
from bench.topic import RECORD_BYTES
from kworker.core import capacity

BEGIN, END = "<!-- made by bench.document -->", "<!-- so far -->"
_WIDTH = 120
_PLOT = "![Records a second of kworker and of what people use instead](docs/performance/rates.svg)"
_REST = (
    "[docs/performance.md](docs/performance.md) has all figures, how the others are written, and"
    " what was not reached."
)

# Contenders whose rates are constants of `kworker.core.capacity`. They are named as those are.
_PLANNED = {
    "kworker-results": capacity.RESULTS.what,
    "kworker-exactly-once": capacity.EXACTLY_ONCE.what,
    "kworker-claims": capacity.IDEMPOTENT.what,
}

# The table: contenders, and the one that the others are compared with.
_SHOWN = (
    ("poll", "kworker"),
    ("pool", "kworker"),
    ("quix", "kworker"),
    ("arroyo", "kworker"),
    ("parallel", "kworker"),
    ("kworker", ""),
    ("kworker-results", ""),
    ("kworker-exactly-once", ""),
    ("quix-decoded", "kworker-decoded"),
    ("parallel-decoded", "kworker-decoded"),
    ("kworker-decoded", ""),
    ("quix-exactly-once", "kworker-decoded-exactly-once"),
    ("parallel-exactly-once", "kworker-decoded-exactly-once"),
    ("kworker-decoded-exactly-once", ""),
    ("threads", "kworker-wait"),
    ("parallel-wait", "kworker-wait"),
    ("kworker-wait", ""),
    ("set-nx", "kworker-claims"),
    ("kworker-claims", ""),
)


def with_figures(readme: str, report: Mapping[str, Any]) -> str:
    """Returns README's text with the figures of this run between its two marks."""
    before, rest = readme.split(f"{BEGIN}\n")
    _, after = rest.split(END)
    block = "\n\n".join((_PLOT, _table(report), _conditions(report)))
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def with_rates(source: str, report: Mapping[str, Any]) -> str:
    """Returns the source of `kworker.core.capacity` with the rates and the machine of this run.

    Raises LookupError if it has no such constant, or the run no such contender.
    """
    found = _rates(report)
    for name, what in _PLANNED.items():
        if name not in found:
            raise LookupError(f"`kworker plan` needs the rate of {name}, which was not measured")
        per_second = int(rounded(found[name]))
        source = _replaced(
            source,
            rf'Measured\([\d_]+, "{re.escape(what)}"\)',
            f'Measured({per_second:_}, "{what}")',
        )
    return _replaced(source, r'(?m)^MACHINE = ".*"$', f'MACHINE = "{_machine(report)}"')


def _replaced(source: str, pattern: str, by: str) -> str:
    made, count = re.subn(pattern, lambda _: by, source)
    if count != 1:
        raise LookupError(f"kworker/core/capacity.py has {pattern} {count} times, instead of once")
    return made


def _rates(report: Mapping[str, Any]) -> dict[str, float]:
    return {line["name"]: line["records_per_second"] for line in report["contenders"]}


def _machine(report: Mapping[str, Any]) -> str:
    return f"{report['cpus']} cores, which the broker shares, with records of {RECORD_BYTES} bytes"


def _table(report: Mapping[str, Any]) -> str:
    found, rows = {line["name"]: line for line in report["contenders"]}, []
    for name, ours in _SHOWN:
        if name in found:
            ratio = f"{found[ours]['ratios'][name]:.2f} ×" if ours else ""
            rows.append([_what(found[name]), rate(found[name]["records_per_second"]), ratio])
    return table(["", "records/s", "kworker is"], rows)


def _what(line: Mapping[str, Any]) -> str:
    what: str = line.get("alone", line["what"])
    if planned := _PLANNED.get(line["name"]):
        what = f"kworker, {planned}"
    return f"**{what}**" if line["name"].startswith("kworker") else what


def _conditions(report: Mapping[str, Any]) -> str:
    size = report["size"]
    text = (
        f"All in one run: medians of {counted(size['rounds'], 'round')}, or of"
        f" {size['untargeted_rounds']} where no ratio is wanted, at commit `{report['commit']}`."
        f" Measured on {_machine(report)}, up to"
        f" {size['records']:,} of them, and fewer where a contender is slow. {_REST}"
    )
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
