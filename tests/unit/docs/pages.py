"""The pages in docs/ and the README: their text, tables, and blocks of code."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    """A block of code; `line` is the number of its first line in the page."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def blocks(language: str) -> list[Block]:
    """Returns the blocks of all pages that are marked with this language."""
    return [
        Block(path, text.count("\n", 0, found.start()) + 2, found[2])
        for path in PAGES
        for text in [path.read_text()]
        for found in _BLOCK.finditer(text)
        if found[1] == language
    ]


def without_blocks(text: str) -> str:
    return _BLOCK.sub("", text)


def spans(text: str) -> list[str]:
    """Returns the texts between backticks."""
    return _SPAN.findall(text)


def rows(text: str, first: str) -> list[list[str]]:
    """Returns the cells of each row of those tables whose first column has this heading."""
    found: list[list[str]] = []
    wanted = False
    for line in without_blocks(text).splitlines():
        if not line.startswith("|"):
            wanted = False
            continue
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        if wanted and not line.startswith("|---"):
            found.append(cells)
        wanted |= cells[0] == first
    return found
