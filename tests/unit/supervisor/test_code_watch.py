"""`start --reload`: a service of a developer runs the code that was saved last."""

from pathlib import Path

import pytest

from kworker.supervisor.code_watch import CodeWatch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("kworker.toml", "handlers.py", "shop/orders.py", ".venv/x.py", "data/rows.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    return tmp_path


class Watched:
    """A watch, and the time at which it looks."""

    def __init__(self, folder: Path) -> None:
        self._watch = CodeWatch(folder / "kworker.toml")
        self._now = 0.0

    def looks(self) -> list[str]:
        self._now += 1.0
        return self._watch.turn(self._now)


@pytest.mark.parametrize("name", ["kworker.toml", "handlers.py", "shop/orders.py", "shop/new.py"])
def test_a_changed_or_new_file_is_named_once(folder: Path, name: str) -> None:
    watched = Watched(folder)
    assert watched.looks() == []
    (folder / name).write_text("changed")
    assert [watched.looks() for _ in range(3)] == [[], [name], []]


def test_a_file_that_cannot_be_looked_at_is_left_out(folder: Path) -> None:
    """The supervisor must not end by it."""
    (folder / "loop.py").symlink_to("loop.py")
    watched = Watched(folder)
    (folder / "handlers.py").write_text("changed")
    assert [watched.looks() for _ in range(2)] == [[], ["handlers.py"]]


def test_a_removed_file_is_a_change(folder: Path) -> None:
    watched = Watched(folder)
    (folder / "shop/orders.py").unlink()
    assert [watched.looks() for _ in range(2)] == [[], ["shop/orders.py"]]


@pytest.mark.parametrize("name", [".venv/x.py", "data/rows.csv", "other.toml"])
def test_what_is_no_code_of_the_service_is_not_watched(folder: Path, name: str) -> None:
    watched = Watched(folder)
    (folder / name).write_text("changed")
    assert [watched.looks() for _ in range(3)] == [[], [], []]


def test_files_that_are_saved_together_are_one_change(folder: Path) -> None:
    watched = Watched(folder)
    (folder / "handlers.py").write_text("changed")
    assert watched.looks() == []
    (folder / "shop/orders.py").write_text("changed")
    assert [watched.looks() for _ in range(2)] == [[], ["handlers.py", "shop/orders.py"]]
