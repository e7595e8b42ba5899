"""Which threads of a process compute: the one that holds the interpreter's lock shows by that."""

import os

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_COMPUTING = 0.5  # of the time between two looks


class Runners:
    """Looks at a process twice, and tells which threads had a CPU meanwhile."""

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
