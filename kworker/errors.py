"""kworker's errors and their exit codes: a class for each next step that a user can take."""

from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `kworker`, for shells, systemd and scripts."""

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
    """An error that has a message for a person and an exit code for a program."""

    exit_code = ExitCode.FAILURE


class ConfigError(KworkerError):
    """The configuration is wrong: fix the file, since restarts cannot help.

    The message has one line for each problem.
    """

    exit_code = ExitCode.CONFIG

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class UsageError(KworkerError):
    """The command line is wrong: type it differently."""

    exit_code = ExitCode.USAGE


class NotRunning(KworkerError):
    """The supervisor is not running: start it first."""

    exit_code = ExitCode.NOT_RUNNING


class Unreachable(KworkerError):
    """A dependency does not answer: wait, or repair it."""

    exit_code = ExitCode.UNREACHABLE


class ClientRejected(Unreachable):
    """A dependency answers, but does not let this client in.

    Correct the configuration key that `key` names, as `next_step` says. Or wait until the
    dependency is changed.
    """

    def __init__(self, problem: str, key: str, next_step: str) -> None:
        super().__init__(f"{key}: {problem}; {next_step}")
        self.problem = problem
        self.key = key
        self.next_step = next_step


class AlreadyRunning(KworkerError):
    """Another process runs this instance, uses its identity, or works on the same data."""

    exit_code = ExitCode.ALREADY_RUNNING


class DrainTimedOut(KworkerError):
    """Some running records did not finish in time; Kafka will deliver them again."""

    exit_code = ExitCode.DRAIN_TIMED_OUT
