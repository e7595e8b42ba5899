"""The help of every verb: it is there, in its panel, and teaches how to read it by a program."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from kworker.cli.main import run
from kworker.cli.verbs import MODULES, VerbModule, command_for

PANELS = {
    "Run a service": ["start", "stop", "restart", "reload", "scale", "dump", "pause", "resume"],
    "Watch a service": ["status", "lag", "logs", "health"],
    "Prepare a service": ["init", "check", "plan", "config", "topics", "sandbox", "systemd"],
    "Records": ["send", "tail", "try"],
    "Repair": ["dead", "reject", "replay", "audit", "offsets", "transactions"],
    "Tables": ["spark"],
    "Help": ["help"],
}
# They change nothing, and a script asks them.
READING = {
    ("audit",),
    ("check",),
    ("config", "show"),
    ("dead", "list"),
    ("dead", "show"),
    ("health", "live"),
    ("health", "ready"),
    ("health", "startup"),
    ("lag",),
    ("logs",),
    ("offsets", "show"),
    ("plan",),
    ("reject",),
    ("sandbox", "status"),
    ("spark", "status"),
    ("status",),
    ("tail",),
    ("topics", "show"),
    ("transactions", "list"),
    ("try",),
}


def _verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the words of each verb, and its command."""
    if children := getattr(command, "commands", None):
        for name, child in children.items():
            yield from _verbs(child, (*words, name))
    else:
        yield words, command


VERBS = dict(_verbs(typer.main.get_command(command_for())))
Said = Any


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command line prints, with its exit code."""

    def of(*words: str) -> tuple[int, str, str]:
        code = run(words)
        out, errors = capsys.readouterr()
        return code, out, errors

    return of


def _panel(text: str, name: str) -> list[str]:
    """The verbs in a panel of `kworker --help`."""
    [box] = re.findall(rf"╭─ {name} ─+╮\n(.*?)╰", text, re.DOTALL)
    return re.findall(r"^│ (\w+)", box, re.MULTILINE)


def test_each_verb_stands_in_its_panel_in_the_order_of_use(said: Said) -> None:
    code, text, _ = said("--help")
    assert code == 0
    names = [name for name in re.findall(r"╭─ (.*?) ─+╮", text) if name != "Options"]
    assert names == list(PANELS)
    assert {name: _panel(text, name) for name in PANELS} == PANELS


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_each_verb_says_in_a_sentence_what_it_does(words: tuple[str, ...]) -> None:
    first = VERBS[words].help.split("\n")[0]
    assert first.endswith((".", ":"))
    assert first[0].isupper()
    assert len(first) <= 100


def test_each_reading_verb_prints_json() -> None:
    with_json = {
        words for words, command in VERBS.items() for o in command.params if "--json" in o.opts
    }
    assert READING - with_json == set()


def test_each_example_in_help_is_a_command_that_exists(said: Said) -> None:
    texts = [command.help for command in VERBS.values()]
    examples = [e for text in texts for e in re.findall(r"\[bold\]kworker (.*?)\[/bold\]", text)]
    assert len(examples) > 10
    for example in examples:
        words = [word for word in example.split() if re.fullmatch(r"[a-z]+", word)]
        assert tuple(words[:1]) in VERBS or tuple(words[:2]) in VERBS, example


@pytest.mark.parametrize("words", [(), ("start",), ("dead",), ("dead", "list"), ("help",)])
def test_help_of_a_verb_is_what_the_verb_prints_itself(said: Said, words: tuple[str, ...]) -> None:
    assert said("help", *words) == said(*words, "--help")


@pytest.mark.parametrize(("words", "meant"), [(("strat",), "'start'"), (("dead", "lst"), "'list'")])
def test_help_of_an_unknown_verb_names_the_nearest(
    said: Said, words: tuple[str, ...], meant: str
) -> None:
    code, out, errors = said("help", *words)
    assert (code, out) == (2, "")
    assert f"No such command '{words[-1]}'. Did you mean {meant}" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("module", MODULES, ids=[module.name for module in MODULES])
def test_the_table_names_the_verbs_that_a_module_has(module: VerbModule) -> None:
    command: Any = typer.main.get_command(command_for([module.verbs[-1], "--help"]))
    assert tuple(command.commands) == module.verbs


def test_a_verb_imports_no_module_of_another_verb() -> None:
    """Each in a child of its own: a module must also do without those that this test has loaded."""
    program = """
import os, sys
from kworker.cli.verbs import MODULES, command_for
for module in MODULES:
    if os.fork() == 0:
        command_for([module.verbs[0]])
        loaded = [m.name for m in MODULES if f"kworker.cli.{m.name}" in sys.modules]
        os._exit(loaded != [module.name])
    if os.wait()[1]:
        print(module.name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_command_line_without_a_verb_knows_all_of_them(
    said: Said, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said("-h") == said("--help")
    code, shown, _ = said()
    assert (code, shown.strip()) == (2, said("--help")[1].strip())
    assert said("--version")[0] == 0
    assert "Did you mean 'start'" in said("strat")[2]
    monkeypatch.setenv("_KWORKER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "kworker dead l")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        run([])
    assert "list" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("start",), ("health", "ready"), ("spark", "run")])
def test_help_of_a_verb_is_that_among_all_verbs(
    said: Said, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    alone = said(*words, "--help")
    command_for()([*words, "--help"], prog_name="kworker", standalone_mode=False)
    assert (0, capsys.readouterr().out, "") == alone
