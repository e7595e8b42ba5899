"""The name of one life of a process, by which others know whether it still goes on."""

import os
from pathlib import Path

_STAT_STATE, _STAT_THREADS, _STAT_STARTED = 0, 17, 19  # in /proc/PID/stat, behind the name


def own_identity(instance: str) -> str:
    """`instance/machine/pid/start`; pids mean something on one boot, in one namespace, only."""
    return f"{instance}/{_machine()}/{os.getpid()}/{_started(os.getpid())}"


class LocalProcesses:
    """Tells of lives on this very machine and of this instance; of others it knows nothing."""

    def __init__(self, instance: str) -> None:
        self._here = f"{instance}/{_machine()}/"

    def has_ended(self, identity: str) -> bool:
        """Whether it surely has ended; False also for what cannot be known from here."""
        pid, _, started = identity.removeprefix(self._here).partition("/")
        if not identity.startswith(self._here) or not pid.isdigit():
            return False
        return _started(int(pid)) != started


def _machine() -> str:
    """One boot and one namespace of pids: two containers may bear the same instance's name."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot[:8]}.{os.stat('/proc/self/ns/pid').st_ino}"


def _started(pid: int) -> str | None:
    """When the process began, in ticks; None when there is none, or only a zombie."""
    try:
        # The name, in brackets, may hold anything, also blanks and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # One whose first thread has ended is not gone: a handler may run in another.
    has_ended = fields[_STAT_STATE] in "ZX" and int(fields[_STAT_THREADS]) <= 1
    return None if has_ended else fields[_STAT_STARTED]
