"""A child that a handler forked and that comes back from it: a copy, which runs nothing more."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bare_service import ROOT

RECORDS = 12


@pytest.mark.parametrize("kind", ["threads", "loop", "batches", "async batches"])
def test_a_forked_child_ends_when_its_handler_returns(kind: str, tmp_path: Path) -> None:
    """It has no poll thread, its client is dead, and what it runs would be done twice."""
    file = tmp_path / "runs"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.forker", kind, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [child] = done.stdout.split()
    lines = [line.split(maxsplit=1) for line in file.read_text().splitlines()]
    assert child not in {pid for pid, _ in lines}
    runs = [int(words) for _, words in lines if words.isdigit()]
    assert sorted(runs) == list(range(RECORDS))
    # What the child wrote to the board would have shown that the handler has ended.
    assert [words for _, words in lines if not words.isdigit()] == ["held True"]
