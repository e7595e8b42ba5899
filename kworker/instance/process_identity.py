"""Process identities, unique even if a pid is reused: they show whether a process has ended."""

import os
from pathlib import Path

_STAT_STATE, _STAT_THREADS, _STAT_STARTED = 0, 17, 19  # in /proc/PID/stat, behind the name


def own_identity(instance: str) -> str:
    """Returns `instance/machine/pid/start`, which no later process with the same pid has."""
    return f"{instance}/{_machine()}/{os.getpid()}/{_started(os.getpid())}"


class LocalProcesses:
    """Finds out if processes of this instance on this machine have ended."""

    def __init__(self, instance: str) -> None:
        self._here = f"{instance}/{_machine()}/"

    def has_ended(self, identity: str) -> bool:
        """Returns True if the process has certainly ended, False if it lives or runs elsewhere."""
        pid, _, started = identity.removeprefix(self._here).partition("/")
        if not identity.startswith(self._here) or not pid.isdigit():
            return False
        return _started(int(pid)) != started


def _machine() -> str:
    """Returns a name for this boot and pid namespace, within which a pid has one meaning."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot[:8]}.{os.stat('/proc/self/ns/pid').st_ino}"


def _started(pid: int) -> str | None:
    """Returns the process's start time in ticks; None if it has ended.

    A zombie has ended, unless other threads of the process are still there.
    """
    try:
        # The name, in brackets before the fields, may itself hold brackets and blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # With other threads left it has not ended: a handler may run in one of them.
    ended = fields[_STAT_STATE] in "ZX" and int(fields[_STAT_THREADS]) <= 1
    return None if ended else fields[_STAT_STARTED]
