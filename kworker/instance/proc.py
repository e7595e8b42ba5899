"""Facts about processes, read from /proc, and the OOM score of this process."""

import os
import re

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OOM_SCORE_MAX = 1000
_BUSY_SHARE = 0.5  # of its process's CPU time: a thread with more of it is busy
_BUSY_SHARE_MIN = 0.1  # of the elapsed time: a thread with less CPU time is not
_COMMAND_LINE_BYTES = 200
_UNIT = re.compile(r"(/user@\d+\.service/.*)?/([^/\n]+\.service)$", re.MULTILINE)


def rss_bytes(pid: int | None) -> int:
    """Returns the resident size of a process in bytes; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def raise_oom_score(more: int) -> None:
    """Raises this process's OOM score: the kernel kills it before other processes of its size.

    `more` is in thousandths of all memory, and adds to the inherited score. This needs no
    privilege.
    """
    try:
        with open("/proc/self/oom_score_adj", "r+") as score:
            raised = min(_OOM_SCORE_MAX, int(score.read()) + more)
            score.seek(0)
            score.write(str(raised))
    except OSError:  # where /proc is read-only, the kernel chooses by size alone
        pass


class CpuSample:
    """The CPU times of a process's threads at one moment.

    `busy_threads`, called later, returns the threads that have been busy since. In a stuck process,
    the busy thread is the one that holds the interpreter's lock.
    """

    def __init__(self, pid: int, now: float) -> None:
        self.pid = pid
        self._at = now
        self._before = _ticks(pid)

    def busy_threads(self, now: float) -> set[int]:
        """Returns the native ids of the threads that have been busy since this sample was taken.

        A busy thread used more than half of the process's CPU time, and more than a tenth of the
        elapsed time.
        """
        before = self._before
        used = {t: ticks - before[t] for t, ticks in _ticks(self.pid).items() if t in before}
        least = _BUSY_SHARE_MIN * (now - self._at) * _TICKS_A_SECOND
        enough = max(_BUSY_SHARE * sum(used.values()), least)
        return {thread for thread, ticks in used.items() if ticks > enough}


def _ticks(pid: int) -> dict[int, int]:
    """Returns the CPU time of each thread by its native id; {} if the process has ended."""
    folder = f"/proc/{pid}/task"
    try:
        return {int(name): _cpu_ticks(f"{folder}/{name}/stat") for name in os.listdir(folder)}
    except OSError:
        return {}


def _cpu_ticks(stat: str) -> int:
    try:
        with open(stat, "rb") as file:
            # The name, in brackets before the fields, may itself hold brackets and blanks.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # the thread has ended
        return 0
    user, system = fields[11:13]
    return int(user) + int(system)


def group_pids(group: int) -> list[int]:
    """Returns the pids of the living processes in a process group."""
    try:
        os.killpg(group, 0)  # a cheap test first: mostly the group has gone
    except ProcessLookupError:
        return []
    except PermissionError:  # the id has been reused by another user's group
        return []
    return [
        pid
        for name in os.listdir("/proc")
        if name.isdigit() and _belongs_to(pid := int(name), group)
    ]


def command_line(pid: int) -> str:
    """Returns the beginning of a process's command line; "" if the process has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_COMMAND_LINE_BYTES).replace(b"\0", b" ")
    except OSError:
        return ""
    return words.decode(errors="replace").strip()


def stderr_target(pid: int) -> str:
    """Returns the file, `pipe:[…]` or `socket:[…]` that a process's standard error is.

    Returns "" if the process has ended, or belongs to another user.
    """
    try:
        return os.readlink(f"/proc/{pid}/fd/2")
    except OSError:
        return ""


def journal_options(pid: int) -> str:
    """Returns the options of journalctl for a process's systemd unit; "" if it has no unit."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return unit_options(file.read())
    except OSError:
        return ""


def unit_options(cgroup: str) -> str:
    """Returns the options of journalctl for the systemd unit in a process's list of cgroups."""
    if (found := _UNIT.search(cgroup)) is None:
        return ""
    return f"--user -u {found[2]}" if found[1] else f"-u {found[2]}"


def has_handler_for(signum: int) -> bool:
    """Returns True if this process has a handler for the signal, as the kernel reports."""
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("SigCgt:"))
        return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    except (OSError, StopIteration):  # not known: assume that the handler is there
        return True


def _belongs_to(pid: int, group: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _parent, its_group = file.read().rpartition(b")")[2].split()[:3]
    except OSError:  # the process has ended
        return False
    return int(its_group) == group and state not in (b"Z", b"X")
