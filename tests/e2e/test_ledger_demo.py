"""The ledger example's demo, as a user types it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.examples import EXAMPLES, LEDGER

TIMEOUT_S = 120.0


def test_the_demo_kills_and_its_books_add_up(tmp_path: Path, bootstrap: str) -> None:
    """On books of its own; the exit code says whether every cent is there."""
    shutil.copytree(LEDGER, tmp_path / "ledger", ignore=shutil.ignore_patterns(".*", "ledger.db*"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(EXAMPLES.parent),
        "KWORKER_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "KWORKER_CONSOLE__LISTEN": "",
    }
    played = subprocess.run(
        [sys.executable, tmp_path / "ledger" / "demo.py", "--transfers", "5000"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    assert ": kill -9 " in played.stdout, "an invalid run"
    assert "     0 transfers that are not booked" in played.stdout
