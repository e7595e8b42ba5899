"""Markdown for the performance page and README: tables, and rates with three digits."""

from collections.abc import Sequence

Cells = Sequence[str]

_DIGITS = 3  # of a rate: the others are noise


def table(head: Cells, rows: Sequence[Cells]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def cell(text: str) -> str:
    """Returns a text as a cell can have it: in one line, and without the bars between cells."""
    return " ".join(text.split()).replace("|", "\\|")


def counted(count: int, noun: str) -> str:
    """Returns "1 key" or "1,000 keys", of a noun with a regular plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rounded(per_second: float) -> float:
    """Returns a rate with three digits, and zeros behind them."""
    return round(per_second, _decimals(per_second))


def rate(per_second: float) -> str:
    """Returns the text of a rate with three digits: 1,020,000 or 6.13."""
    return f"{rounded(per_second):,.{max(0, _decimals(per_second))}f}"


def _decimals(per_second: float) -> int:
    return _DIGITS - len(str(int(per_second)))
