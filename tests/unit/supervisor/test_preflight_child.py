"""The report of the preflight check, from its child to the supervisor."""

import os
import selectors
from pathlib import Path

import pytest

from kworker.config import toml_file
from kworker.config.model import Config
from kworker.supervisor.preflight_child import Check, PreflightReport
from tests.support.config_text import smallest


def reported(report: PreflightReport, config: Config) -> PreflightReport | None:
    """The report as the supervisor has it once the child has ended."""
    with selectors.DefaultSelector() as selector:
        check = Check(lambda _: report, config, selector, now=0.0, limit_s=60.0)
        assert check.pid
        while selector.get_map():
            for key, _ in selector.select(timeout=10.0):
                key.data()
        pid, status = os.waitpid(check.pid, 0)
        check.on_exit(pid, os.waitstatus_to_exitcode(status))
    return check.report


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "kworker.toml"
    file.write_text(smallest())
    return toml_file.load(file)


def test_a_long_report_arrives_and_a_longer_one_failed(config: Config) -> None:
    """A part of one is no report, and must not end the supervisor."""
    long = PreflightReport(unreachable=["x" * 1_000_000])
    assert reported(long, config) == long
    longer = PreflightReport(unreachable=["x" * 2_000_000])
    failed = PreflightReport(unreachable=["the preflight check failed (exit code 1): see the log"])
    assert reported(longer, config) == failed
