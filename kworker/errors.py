"""What can go wrong, sorted by the reader's next step; exit codes are a protocol."""

from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """What `kworker` tells the shell, systemd and scripts (DESIGN, section 5)."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_RUNNING = 3
    UNREACHABLE = 69
    GAVE_UP = 70
    ALREADY_RUNNING = 73
    DRAIN_TIMED_OUT = 75
    CONFIG = 78


class KworkerError(Exception):
    """An error with a line for a person and an exit code for a program."""

    exit_code = ExitCode.FAILURE


class ConfigError(KworkerError):
    """Fix the file: restarting cannot help. Holds every problem found, one line each."""

    exit_code = ExitCode.CONFIG

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class UsageError(KworkerError):
    """Type it differently."""

    exit_code = ExitCode.USAGE


class NotRunning(KworkerError):
    """There is no supervisor to talk to: start it first."""

    exit_code = ExitCode.NOT_RUNNING


class Unreachable(KworkerError):
    """A dependency does not answer: wait, or look after it."""

    exit_code = ExitCode.UNREACHABLE


class AlreadyRunning(KworkerError):
    """Another supervisor holds this instance, or a twin has taken its identity."""

    exit_code = ExitCode.ALREADY_RUNNING


class DrainTimedOut(KworkerError):
    """Not all that was in hand could finish; the rest is delivered again."""

    exit_code = ExitCode.DRAIN_TIMED_OUT
