"""Every command in the pages exists, with its options and values; none of them is run."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from kworker.cli.verbs import command_for
from tests.unit.docs.pages import PAGES, Block, blocks, spans, without_blocks

ROOT = typer.main.get_command(command_for())
_ASSIGNMENT = re.compile(r"\w+=.*")
_PLACEHOLDERS = ("…", "|")


def commands(block: Block) -> list[list[str]]:
    """Returns the words of each `kworker …` in a block of shell lines."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                found.append(command)
                command = []
            elif command or not _ASSIGNMENT.fullmatch(word):
                command.append(word)
    return [words for words in found if words and words[0] == "kworker"]


def parse(words: list[str]) -> None:
    """Raises TyperException unless kworker would run these words."""
    command, context, name = ROOT, None, "kworker"
    while words and (found := _verbs(command).get(words[0])):
        context = command.make_context(name, words[:1], parent=context)
        name, command, words = words[0], found, words[1:]
    try:
        context = command.make_context(name, list(words), parent=context)
        if _verbs(command):
            command.resolve_command(context, list(words))
    except typer.Exit:
        assert "--help" in words or "--version" in words


def _verbs(command: Any) -> dict[str, Any]:
    return getattr(command, "commands", {})


SHELL = blocks("sh")


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_each_command_of_a_block_is_one_that_kworker_takes(block: Block) -> None:
    for words in commands(block):
        parse(words[1:])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_each_command_in_a_sentence_exists(path: Path) -> None:
    """It may leave out what its verb needs: `kworker reject` stands for itself."""
    for text in spans(without_blocks(path.read_text())):
        if not text.startswith("kworker ") or any(each in text for each in _PLACEHOLDERS):
            continue
        command, words = ROOT, shlex.split(text)[1:]
        while words and (found := _verbs(command).get(words[0])):
            command, words = found, words[1:]
        options = {option for each in command.params for option in each.opts} | {"--help"}
        assert command is not ROOT, text
        assert not (_verbs(command) and words), text
        assert {word for word in words if word.startswith("--")} <= options, text


def test_commands_are_found() -> None:
    """Else the tests above would pass for pages that are written in another way."""
    block = Block(PAGES[0], 1, "A=1 kworker status | kworker check # c\nmake x && kworker stop\n")
    assert [words[1] for words in commands(block)] == ["status", "check", "stop"]
    assert len([words for block in SHELL for words in commands(block)]) >= 20


@pytest.mark.parametrize("words", ["statsu", "stop --soon", "dead list --select", "offsets reset"])
def test_a_mistake_is_found(words: str) -> None:
    with pytest.raises(typer.TyperException):
        parse(words.split())
