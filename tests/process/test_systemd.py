"""The unit file: one text, printed and shipped, that systemd itself accepts."""

import subprocess
from pathlib import Path

from kworker.cli.systemd import unit
from tests.support.bare_service import ROOT

SHIPPED = ROOT / "systemd" / "kworker@.service"


def test_the_shipped_unit_is_the_one_that_is_printed():
    """Two texts of one unit drift apart."""
    assert SHIPPED.read_text() == unit("/usr/local/bin/kworker")


def test_systemd_accepts_the_unit(tmp_path: Path):
    command = tmp_path / "kworker"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    file = tmp_path / "kworker@.service"
    file.write_text(unit(str(command)))
    # An instance is what can be verified; a template alone is not.
    verdict = subprocess.run(
        [
            "systemd-analyze",
            "verify",
            "--recursive-errors=no",
            f"{tmp_path}/kworker@orders.service",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
    )
    assert verdict.returncode == 0, verdict.stderr
    assert "kworker" not in verdict.stderr
