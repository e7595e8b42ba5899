"""What /proc tells of another process: its size, and which of its threads compute."""

import os

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_COMPUTING = 0.5  # of the time between two looks


def rss_bytes(pid: int | None) -> int:
    """The resident size of a process; 0 of one that is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


class Runners:
    """Looks at a process twice, and tells which threads had a CPU meanwhile.

    By that the one shows that holds the interpreter's lock: the others wait for it.
    """

    def __init__(self, pid: int, now: float) -> None:
        self.pid = pid
        self._at = now
        self._before = _ticks(pid)

    def computing(self, now: float) -> set[int]:
        """The system's numbers of those that computed most of the time since the first look."""
        enough = _COMPUTING * (now - self._at) * _TICKS_A_SECOND
        after = _ticks(self.pid).items()
        return {
            thread
            for thread, ticks in after
            if thread in self._before and ticks - self._before[thread] > enough
        }


def _ticks(pid: int) -> dict[int, int]:
    """The CPU time of each thread; none of a process that is gone."""
    folder = f"/proc/{pid}/task"
    try:
        return {int(name): _used(f"{folder}/{name}/stat") for name in os.listdir(folder)}
    except OSError:
        return {}


def _used(stat: str) -> int:
    try:
        with open(stat, "rb") as file:
            # The name before it may hold anything, a bracket and blanks too.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it has ended since
        return 0
    user, system = fields[11:13]
    return int(user) + int(system)
