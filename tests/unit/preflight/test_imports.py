"""The report of the process that imports handlers, however long it is."""

from pathlib import Path

from kworker.config import toml_file
from kworker.preflight.imports import import_all
from tests.support.config_text import smallest

MODULES = 40


def test_long_errors_of_many_handlers_are_reported(tmp_path: Path) -> None:
    """More than a pipe holds at once, whose reader waits for the end of the writer."""
    file = tmp_path / "kworker.toml"
    file.write_text(smallest())
    for number in range(MODULES):
        (tmp_path / f"broken{number}.py").write_text("raise ValueError('x' * 1_000_000)")
    keys = {f"broken{number}:handle": "handler" for number in range(MODULES)}
    found, _ = import_all(toml_file.load(file), keys, timeout_s=20.0)
    assert len(found) == MODULES
    assert all("does not import: ValueError: xxx" in each.problem for each in found)
    assert all(each.problem.endswith(".py line 1)") for each in found)
    assert all(len(each.problem) < 2_200 for each in found)
