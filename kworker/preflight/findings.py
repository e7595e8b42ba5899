"""Findings of checks, and the exit code of the worst of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from kworker.errors import ExitCode


@dataclass(frozen=True)
class Finding:
    """A problem that a check found, and what the user can do about it.

    `exit_code` is `UNREACHABLE` if waiting may help, `CONFIG` if the user must change something,
    `ALREADY_RUNNING` if another copy of the instance runs, and `OK` if this is only a hint.
    """

    key: str
    problem: str
    next_step: str
    exit_code: ExitCode = ExitCode.CONFIG

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}; {self.next_step}"


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """Returns the exit code of the worst finding; `OK` without findings."""
    codes = {finding.exit_code for finding in findings}
    worst = (ExitCode.CONFIG, ExitCode.ALREADY_RUNNING, ExitCode.UNREACHABLE)
    return next((code for code in worst if code in codes), ExitCode.OK)
