"""What /proc says of a process's log."""

import subprocess
import sys
from pathlib import Path

import pytest

from kworker.instance import proc


def test_the_target_of_standard_error_is_a_file_or_a_pipe(tmp_path: Path) -> None:
    script = "import sys; sys.stdin.read()"
    with (tmp_path / "log").open("w") as log:
        for stderr, begins in ((log, str(tmp_path / "log")), (subprocess.PIPE, "pipe:[")):
            command = [sys.executable, "-c", script]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=stderr) as child:
                assert proc.stderr_target(child.pid).startswith(begins)
    assert proc.stderr_target(child.pid) == ""


@pytest.mark.parametrize(
    ("cgroup", "options"),
    [
        (
            "0::/system.slice/system-kworker.slice/kworker@orders.service\n",
            "-u kworker@orders.service",
        ),
        (
            "0::/user.slice/user-7.slice/user@7.service/app.slice/orders.service\n",
            "--user -u orders.service",
        ),
        ("0::/user.slice/user-7.slice/session-3.scope\n", ""),
        ("0::/\n", ""),
        ("12:pids:/a\n1:name=systemd:/system.slice/orders.service\n0::/\n", "-u orders.service"),
        ("0::/system.slice/docker-0ddba115.scope\n", ""),
        ("", ""),
    ],
)
def test_the_unit_is_read_from_the_control_group(cgroup: str, options: str) -> None:
    assert proc.unit_options(cgroup) == options


def test_a_process_that_is_gone_has_no_unit() -> None:
    assert proc.journal_options(1 << 30) == ""
