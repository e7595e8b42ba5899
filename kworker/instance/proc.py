"""What /proc tells of processes, and is told: their size, who computes, who goes first."""

import os

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OOM_SCORE_MAX = 1000
_BUSY_SHARE = 0.5  # of what its process had of the CPUs between two looks
_TITLE_BYTES = 200
_BUSY_SHARE_MIN = 0.1  # of that time: nobody computes


def rss_bytes(pid: int | None) -> int:
    """The resident size of a process; 0 of one that is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def raise_oom_score(more: int) -> None:
    """Where memory runs out, this process is ended before those with less of this, a lead in size.

    It counts thousandths of all memory, on top of what was inherited; nobody needs a privilege
    for more of it.
    """
    try:
        with open("/proc/self/oom_score_adj", "r+") as score:
            most = min(_OOM_SCORE_MAX, int(score.read()) + more)
            score.seek(0)
            score.write(str(most))
    except OSError:  # where /proc is read-only the system chooses by size alone
        pass


class CpuSample:
    """Looks at a process twice, and tells which threads had a CPU meanwhile.

    By that the one shows that holds the interpreter's lock: the others wait for it.
    """

    def __init__(self, pid: int, now: float) -> None:
        self.pid = pid
        self._at = now
        self._before = _ticks(pid)

    def busy_threads(self, now: float) -> set[int]:
        """The system's numbers of those that computed most of what was since the first look.

        That may be little: a machine that is short of CPUs has others to run.
        """
        before = self._before
        used = {t: ticks - before[t] for t, ticks in _ticks(self.pid).items() if t in before}
        least = _BUSY_SHARE_MIN * (now - self._at) * _TICKS_A_SECOND
        enough = max(_BUSY_SHARE * sum(used.values()), least)
        return {thread for thread, ticks in used.items() if ticks > enough}


def _ticks(pid: int) -> dict[int, int]:
    """The CPU time of each thread; none of a process that is gone."""
    folder = f"/proc/{pid}/task"
    try:
        return {int(name): _cpu_ticks(f"{folder}/{name}/stat") for name in os.listdir(folder)}
    except OSError:
        return {}


def _cpu_ticks(stat: str) -> int:
    try:
        with open(stat, "rb") as file:
            # The name before it may hold anything, a bracket and blanks too.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it has ended since
        return 0
    user, system = fields[11:13]
    return int(user) + int(system)


def group_pids(group: int) -> list[int]:
    """The processes of a process group that live; none when it has gone."""
    try:
        os.killpg(group, 0)  # cheap, and mostly there is nobody
    except ProcessLookupError:
        return []
    except PermissionError:  # they are others' by now
        return []
    return [
        pid
        for name in os.listdir("/proc")
        if name.isdigit() and _belongs_to(pid := int(name), group)
    ]


def command_line(pid: int) -> str:
    """How a process was called; "" of one that is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(_TITLE_BYTES).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def has_handler_for(signum: int) -> bool:
    """Whether this process has a handler for a signal, as the system sees it."""
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("SigCgt:"))
        return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    except (OSError, StopIteration):  # nothing is known
        return True


def _belongs_to(pid: int, group: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _parent, its = file.read().rpartition(b")")[2].split()[:3]
    except OSError:  # it has ended since
        return False
    return int(its) == group and state not in (b"Z", b"X")
