"""A child that a handler forked and that comes back from it: a copy, which runs nothing more."""

from pathlib import Path

import pytest

from tests.support.bare_service import python

RECORDS = 12


@pytest.mark.parametrize("kind", ["threads", "loop", "batches", "async batches"])
def test_a_forked_child_ends_when_its_handler_returns(kind: str, tmp_path: Path) -> None:
    """It has no poll thread, its client is dead, and what it runs would be done twice."""
    file = tmp_path / "runs"
    done = python("-m", "tests.support.forker", kind, file)
    assert done.returncode == 0, done.stderr
    [child] = done.stdout.split()
    lines = [line.split(maxsplit=1) for line in file.read_text().splitlines()]
    assert child not in {pid for pid, _ in lines}
    runs = [int(words) for _, words in lines if words.isdigit()]
    assert sorted(runs) == list(range(RECORDS))
    # What the child wrote to the board would have shown that the handler has ended.
    assert [words for _, words in lines if not words.isdigit()] == ["held True"]
