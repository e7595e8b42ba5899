"""docs/troubleshooting.md has every line that the status can show, in the words of the code."""

import ast
import re
from itertools import product

from kworker.cli.options import INTERRUPTED
from kworker.errors import ExitCode
from kworker.supervisor.mode import Mode
from tests.unit.docs.pages import page, rows, spans
from tests.unit.docs.reasons import (
    ELSEWHERE,
    FURTHER,
    OTHER_TEXTS,
    PACKAGE,
    found,
)

TEXT = page("troubleshooting.md")
TEXTS = found()
QUOTED = [span for span in spans(TEXT) if " " in span]
# The first cells of the tables, and the lists: these are lines of the status and nothing else.
LINES = [
    *(span for first, *_ in rows(TEXT, "line") for span in spans(first)),
    *(span for item in re.findall(r"^- .*\n(?: {2}.*\n)*", TEXT, re.M) for span in spans(item)),
]


def test_each_text_of_the_status_is_explained() -> None:
    """A new text fails here until the page has it."""
    assert [text for text in TEXTS if not any(quoted in text.text for quoted in QUOTED)] == []


def test_each_line_of_the_page_is_in_the_code() -> None:
    """A text that changes fails here: nobody would find the line that the status shows."""
    assert [line for line in LINES if not any(line in text.text for text in TEXTS)] == []
    assert len(LINES) > 100  # else they are written in another way


def test_the_places_that_are_searched_exist() -> None:
    assert [file for file in ELSEWHERE if not (PACKAGE / file).exists()] == []
    for file, names in FURTHER.items():
        defined = {
            node.id if isinstance(node, ast.Name) else node.name
            for node in ast.walk(ast.parse((PACKAGE / file).read_text()))
            if isinstance(node, ast.Name | ast.ClassDef | ast.FunctionDef)
        }
        assert names <= defined, file


def test_the_texts_that_are_left_out_exist() -> None:
    there = {(text.file, text.text) for text in found(left_out=True)}
    left_out = {(file, text) for file, texts in OTHER_TEXTS.items() for text in texts}
    assert left_out - there == set()


def test_the_page_has_every_state_and_every_exit_code() -> None:
    states = {
        mode.state(problems, joined=joined, paused=paused)
        for mode, problems, joined, paused in product(
            Mode, ([], ["a problem"]), (True, False), (True, False)
        )
    }
    assert {first for first, *_ in rows(TEXT, "state")} == states
    codes = {int(first) for first, *_ in rows(TEXT, "code")}
    assert codes == {*map(int, ExitCode), INTERRUPTED}
