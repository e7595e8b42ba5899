"""The paths and names in ARCHITECTURE.md, compared with the code."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import kworker
from tests.unit.test_layers import FLOORS

PACKAGE = Path(kworker.__file__).parent
ROOT = PACKAGE.parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w./-]+(?:\.(?:py|md|toml)|/)")
NAME = re.compile(r"([A-Z][A-Za-z]*[a-z][A-Za-z]*)(?:\.(\w+))?")
FUNCTION = re.compile(r"(\w+)\(\)")
STEP = re.compile(r"^\d+\. `.*", re.MULTILINE)
LAYER = re.compile(r"^\| \d \| ([^|]*) \|", re.MULTILINE)


def _section(number: int) -> str:
    return re.split(r"^## ", TEXT, flags=re.MULTILINE)[number]


def _in_code(text: str) -> list[str]:
    return CODE.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def _paths(text: str) -> list[str]:
    return [token for token in _in_code(text) if PATH.fullmatch(token)]


def _names(text: str) -> Iterator[str]:
    """Yields a class, a class with a member, or a function with its brackets."""
    for token in _in_code(text):
        if NAME.fullmatch(token) or FUNCTION.fullmatch(token):
            yield token


def _members(of: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(of):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def _defined_in(file: Path) -> Iterator[str]:
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
                yield from (f"{name}.{member}" for member in _members(node))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield f"{name}()"


DEFINED = {file: set(_defined_in(file)) for file in PACKAGE.rglob("*.py")}
STEPS = STEP.findall(_section(3))


def test_every_path_in_it_exists() -> None:
    paths = _paths(TEXT)
    assert paths
    assert [path for path in paths if not any((at / path).exists() for at in (PACKAGE, ROOT))] == []


def test_every_class_method_and_function_in_it_exists() -> None:
    defined = set().union(*DEFINED.values())
    assert [name for name in _names(TEXT) if name not in defined] == []


def test_every_file_at_the_top_of_worker_is_in_it() -> None:
    files = {f"worker/{file.name}" for file in (PACKAGE / "worker").glob("[!_]*.py")}
    assert files - set(_paths(TEXT)) == set()


def test_the_walk_names_each_file_once() -> None:
    steps_of = defaultdict(list)
    for step in STEPS:
        [path] = _paths(step)
        steps_of[path].append(step)
    assert steps_of
    assert {path: steps for path, steps in steps_of.items() if len(steps) > 1} == {}


def test_each_step_of_the_walk_names_code_of_its_file() -> None:
    wrong = []
    for step in STEPS:
        [path] = _paths(step)
        names = set(_names(step))
        if not names or names - DEFINED[PACKAGE / path]:
            wrong.append(step)
    assert wrong == []


def test_its_layers_are_those_that_the_imports_keep_to() -> None:
    rows = [tuple(_in_code(row)) for row in LAYER.findall(_section(6))]
    assert rows == list(FLOORS)
