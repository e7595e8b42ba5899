"""CPU affinity: a worker's threads share one CPU while that is enough for them.

The interpreter's lock lets one of them run at a time. When each hand-over of that lock goes to
another CPU, all that a record is made of moves with it, and a CPU that sleeps has to be woken. So
the threads of Python keep to one CPU while handlers are cheap and compute, because they could not
use two anyway, and while they mostly wait, because one has room for all of them. Handlers that
compute without the lock, in a library, may have every CPU. So may the Kafka library's own threads,
which never take that lock.
"""

import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_libc = ctypes.CDLL(None)
_TASKS = "/proc/self/task"
_SCHEDULED = Path("/proc/thread-self/schedstat")  # ns on a CPU, ns waiting for one, how often
_STARTS = frozenset(
    {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.spawn", "os.system"}
)
_LIBRARY = "rdk:"  # how librdkafka's threads are called


class Usage(NamedTuple):
    """The seconds of CPU used by the process, and those for which this thread waited for a CPU."""

    used_s: float
    delayed_s: float


@dataclass(frozen=True, slots=True)
class CpuAffinityPolicy:
    """The thresholds for choosing between one CPU and all, and the seconds between choices."""

    keep_s: float = 5.0
    choose_s: float = 0.05
    look_s: float = 0.2
    little: float = 0.5  # of one CPU, used by the whole process: one is enough
    much: float = 0.7  # one is not
    crowded: float = 0.25  # of the time, waiting for a CPU that others use, too
    shy_s: float = 1.0  # after that


class CpuAffinity:
    """Keeps this process's threads on one CPU while that is enough for them, else on all CPUs.

    Owned by the poll thread.
    """

    def __init__(
        self,
        policy: CpuAffinityPolicy,
        *,
        usage: Callable[[], Usage] | None = None,
        place: Callable[[set[int]], None] | None = None,
    ) -> None:
        """`usage` measures the use of CPUs. `place` pins the threads to a set of CPUs."""
        self._policy = policy
        self._usage = usage or _usage
        self._place = place or _OwnThreads().place
        _let_children_go()
        self._every = os.sched_getaffinity(0)
        self._together = False
        self._until = 0.0
        self._enough = self._crowded = False  # one CPU, as it was lately
        self._looked: tuple[float, Usage] | None = None

    def decide(self, locked: bool, now: float) -> None:
        """Pins the threads to one CPU or lets them use all, as their recent use of CPUs suggests.

        `locked` is True if handlers hold the interpreter's lock (GIL) so much that two threads
        could not use two CPUs.
        """
        self._look(now)
        if not (locked or self._enough):
            self._spread()
        elif self._together and self._crowded and not locked:
            self._spread()
            self._until = now + self._policy.shy_s
        elif now >= self._until and len(self._every) > 1:
            # One that others need more than before is left: the scheduler chooses, then we stay.
            if self._together:
                self._spread()
                self._until = now + self._policy.choose_s
            else:
                self._gather()
                self._until = now + self._policy.keep_s

    def end(self) -> None:
        """Lets the pinned threads run on every CPU again, at the end of the pool."""
        self._spread()

    def _look(self, now: float) -> None:
        at, before = self._looked or (now, self._usage())
        self._looked = (at, before)
        if now - at >= self._policy.look_s:
            usage = self._usage()
            share = (usage.used_s - before.used_s) / (now - at)
            self._enough = share < (self._policy.much if self._enough else self._policy.little)
            self._crowded = usage.delayed_s - before.delayed_s > self._policy.crowded * (now - at)
            self._looked = (now, usage)

    def _gather(self) -> None:
        self._together = True
        self._place({_libc.sched_getcpu()})

    def _spread(self) -> None:
        if self._together:
            self._together = False
            self._place(self._every)


@functools.cache
def _let_children_go() -> None:
    """Lets a thread that starts a process use every CPU again.

    The new process may use only the CPUs that its parent thread may use.
    """
    every = os.sched_getaffinity(0)

    def hear(event: str, _arguments: object) -> None:
        if event in _STARTS:
            with suppress(OSError):
                os.sched_setaffinity(0, every)

    sys.addaudithook(hear)


def _usage() -> Usage:
    try:
        delayed_ns = int(_SCHEDULED.read_text().split()[1])
    except (OSError, IndexError):
        delayed_ns = 0  # this kernel does not tell
    return Usage(time.process_time(), delayed_ns / 1e9)


class _OwnThreads:
    """Pins all threads of this process to CPUs, except those of the Kafka library.

    Called by the poll thread while handlers wait for the interpreter's lock. A thread of the Kafka
    library is known by its name. The name of a known thread is not read again, as that is slow.
    """

    def __init__(self) -> None:
        self._own: dict[str, bool] = {}
        self._young: set[str] = set()  # these may not have been given their names yet

    def place(self, cpus: set[int]) -> None:
        present = os.listdir(_TASKS)
        known = {task: self._own[task] for task in present if task in self._own}
        read = {task: _is_own(task) for task in present if task not in known}
        for task, own in (known | read).items():
            if own:
                with suppress(OSError):  # it has ended, or that CPU was taken from us: anywhere
                    os.sched_setaffinity(int(task), cpus)
        self._own = known | {task: own for task, own in read.items() if task in self._young}
        self._young = read.keys() - self._own


def _is_own(task: str) -> bool:
    try:
        return not Path(_TASKS, task, "comm").read_text().startswith(_LIBRARY)
    except OSError:
        return False
