"""What a check found, and the exit code of the worst of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from kworker.errors import ExitCode


@dataclass(frozen=True)
class Finding:
    """Something a check found, and what to do about it.

    `CONFIG`: waiting will not help. `ALREADY_RUNNING`: nor against another copy. `UNREACHABLE`:
    it may. `OK`: good to know, no more.
    """

    key: str
    problem: str
    next_step: str
    exit_code: ExitCode = ExitCode.CONFIG

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}; {self.next_step}"


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """The one that tells the worst of them."""
    codes = {finding.exit_code for finding in findings}
    worst = (ExitCode.CONFIG, ExitCode.ALREADY_RUNNING, ExitCode.UNREACHABLE)
    return next((code for code in worst if code in codes), ExitCode.OK)
