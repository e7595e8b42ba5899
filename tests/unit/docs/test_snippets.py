"""The code, the configurations and the links of the pages are whole."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kworker.config import toml_file
from tests.unit.docs.pages import PAGES, Block, blocks, without_blocks

# A snippet may be a part of a file: these tables make it whole.
LEAST: dict[str, Any] = {
    "name": "orders",
    "handler": "handlers:notify",
    "source": {"topics": ["orders"]},
    "kafka": {"bootstrap.servers": "127.0.0.1:9092"},
}
_SECRET = re.compile(r'\{ (?:file|env) = "[^"]*" \}')
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_each_snippet_of_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_each_snippet_of_toml_is_a_configuration(block: Block, tmp_path: Path) -> None:
    """Its keys exist, and its values may stand together."""
    tables = tomllib.loads(_SECRET.sub('"a-secret-of-some-length"', block.text))
    toml_file.from_tables(LEAST, tmp_path / "kworker.toml", {}, tables)


def anchors(path: Path) -> set[str]:
    """Returns the names that GitHub gives to the headings of a page."""
    headings = _HEADING.findall(without_blocks(path.read_text()))
    return {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_each_link_leads_somewhere(path: Path) -> None:
    for target in _LINK.findall(without_blocks(path.read_text())):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target
