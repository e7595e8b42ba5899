"""CPU affinity: a worker's threads share one CPU while that is enough for them.

Only the thread that holds the interpreter's lock can run Python. If the lock goes to a thread on
another CPU, that CPU must load the record's data into its cache, and may have to be woken first. So
all threads that run Python share one CPU in three cases: if handlers are cheap and compute, since
the threads could not use two CPUs anyway; if the threads mostly wait, since one CPU then suffices;
and if they run more records on one. To find that out, one is tried when they are busy on all: 256
threads that sleep 10 ms a record use 1.1 CPUs on two, most of it to hand over the lock, and run a
sixth fewer records than on one. Handlers that compute without the lock, in a library, may use every
CPU. So may the Kafka library's own threads, which never take the lock. If another process uses the
shared CPU, too, the threads move to an idle one, if there is one.
"""

import ctypes
import functools
import multiprocessing.util
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kworker.worker.handlers.cpu_comparison import Comparison, ComparisonPolicy

_libc = ctypes.CDLL(None)
_TASKS = "/proc/self/task"
_CPUS = Path("/proc/stat")
_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_IDLE = slice(3, 5)  # of a CPU's counters in `_CPUS`: idle, and idle while a disk is busy
_SCHEDULED = Path("/proc/thread-self/schedstat")  # ns on a CPU, ns waiting for one, how often
_STARTS = frozenset(
    {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.spawn", "os.system"}
)
_LIBRARY = "rdk:"  # how librdkafka's threads are called


class Usage(NamedTuple):
    """The seconds of CPU used by the process, and those for which this thread waited for a CPU."""

    used_s: float
    delayed_s: float


class CpuLoad(NamedTuple):
    """The seconds of CPU used by the pinned threads so far, and those that each CPU was idle."""

    own_s: float
    idle_s: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class CpuAffinityPolicy:
    """The thresholds for choosing between one CPU and all, and the seconds between measurements."""

    look_s: float = 0.2
    little: float = 0.5  # of one CPU, used by the whole process: one is enough
    much: float = 0.7  # one is not
    crowded: float = 0.25  # of the time, waiting for a CPU that others use, too
    shy_s: float = 1.0  # on all of them, after that
    look_most_s: float = 1.0  # a longer time between two measurements: the process was suspended
    compare_s: float = 0.5  # between comparisons of this CPU with the others
    alone: float = 0.8  # of a CPU, used by these threads: nobody else needs it
    full: float = 0.1  # of the time, for which this CPU may be idle and still be full
    idle: float = 0.3  # of the time, for which another CPU must be idle to be better
    leave: float = 0.5  # chance to go there, since the other process may go there, too


class CpuAffinity:
    """Keeps this process's threads on one CPU while that is enough for them, else on all CPUs.

    Owned by the poll thread.
    """

    def __init__(
        self,
        policy: CpuAffinityPolicy,
        *,
        ended: Callable[[], int],
        usage: Callable[[], Usage] | None = None,
        load: Callable[[], CpuLoad] | None = None,
        place: Callable[[set[int]], None] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`ended` returns the number of records that have ended so far.

        `usage` and `load` measure the use of CPUs. `place` pins the threads to a set of CPUs.
        `chance` returns a number from 0 to 1.
        """
        threads = _OwnThreads()
        self._policy = policy
        self._ended = ended
        self._usage = usage or _usage
        self._load = load or threads.load
        self._place = place or threads.place
        self._chance = chance
        _let_children_go()
        self._every = os.sched_getaffinity(0)
        self._cpu: int | None = None  # that has all threads
        self._compared: tuple[float, CpuLoad] | None = None
        self._until = 0.0  # then one CPU may be tried again
        self._enough = self._crowded = False  # one CPU, as it was lately
        self._comparison = Comparison(ComparisonPolicy())
        self._looked: tuple[float, Usage, int] | None = None

    def decide(self, locked: bool, now: float) -> None:
        """Pins the threads to one CPU or lets them use all, as their recent use of CPUs suggests.

        `locked` is True if handlers hold the interpreter's lock (GIL) so much that two threads
        could not use two CPUs.
        """
        self._look(locked, now)
        faster = locked or self._comparison.one  # one CPU than all
        if not (faster or self._enough):
            self._spread()
        elif self._cpu is None:
            if now >= self._until and len(self._every) > 1:
                self._gather(_libc.sched_getcpu())  # where the scheduler has put this thread
        elif self._crowded and not faster:
            self._spread()
            self._until = now + self._policy.shy_s
        elif (better := self._better(self._cpu, now)) is not None:
            self._gather(better)

    def end(self) -> None:
        """Lets the pinned threads run on every CPU again, at the end of the pool."""
        self._spread()

    def _look(self, locked: bool, now: float) -> None:
        if self._looked is None:
            self._looked = (now, self._usage(), self._ended())
        at, before, ended_before = self._looked
        if (lasted_s := now - at) < self._policy.look_s:
            return
        usage, ended = self._usage(), self._ended()
        self._looked = (now, usage, ended)
        if lasted_s > self._policy.look_most_s:
            return
        used_s = usage.used_s - before.used_s
        # While one is compared with all, the records that end decide, however little it is used.
        most = self._policy.much if self._enough else self._policy.little
        self._enough = used_s < most * lasted_s and not self._comparison.one
        self._crowded = usage.delayed_s - before.delayed_s > self._policy.crowded * lasted_s
        measured_one = self._cpu is not None
        if locked or self._enough or measured_one != self._comparison.one:
            self._comparison.interrupt()
        else:
            self._comparison.add(lasted_s, used_s, ended - ended_before, now)

    def _better(self, cpu: int, now: float) -> int | None:
        """Returns an idle CPU if another process uses `cpu`, too; else None.

        Compares the CPUs every `compare_s` seconds, and returns None in between. A random choice
        decides whether to return the idle CPU, since the other process may move there, too.
        """
        policy = self._policy
        if self._compared is None:
            self._compared = (now, self._load())
        at, before = self._compared
        if (lasted_s := now - at) < policy.compare_s:
            return None
        load = self._load()
        self._compared = (now, load)
        cpus = self._every & load.idle_s.keys() & before.idle_s.keys()
        idle = {each: (load.idle_s[each] - before.idle_s[each]) / lasted_s for each in cpus}
        alone = (load.own_s - before.own_s) / lasted_s >= policy.alone
        if alone or idle.get(cpu, 1.0) > policy.full:
            return None
        idlest = max(idle, key=lambda each: idle[each])
        return idlest if idle[idlest] >= policy.idle and self._chance() < policy.leave else None

    def _gather(self, cpu: int) -> None:
        self._cpu = cpu
        self._compared = self._looked = None
        self._place({cpu})

    def _spread(self) -> None:
        if self._cpu is not None:
            self._cpu = None
            self._compared = self._looked = None
            self._place(self._every)


@functools.cache
def _let_children_go() -> None:
    """Installs hooks: a thread that is about to start a process may use every CPU again.

    Otherwise the new process could use only the CPU to which this thread is pinned.
    """
    every = os.sched_getaffinity(0)
    spawn = multiprocessing.util.spawnv_passfds

    def let_go() -> None:
        with suppress(OSError):
            os.sched_setaffinity(0, every)

    def hear(event: str, _arguments: object) -> None:
        if event in _STARTS:
            let_go()

    def let_go_and_spawn(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
        let_go()
        return spawn(path, args, passfds)

    sys.addaudithook(hear)
    # The start methods `spawn` and `forkserver` raise no audit event.
    multiprocessing.util.spawnv_passfds = let_go_and_spawn


def _usage() -> Usage:
    try:
        delayed_ns = int(_SCHEDULED.read_text().split()[1])
    except (OSError, IndexError):
        delayed_ns = 0  # this kernel does not tell
    return Usage(time.process_time(), delayed_ns / 1e9)


class _OwnThreads:
    """Pins the threads of this process, but not the Kafka library's, to CPUs; measures their load.

    Used by the poll thread. It must be fast, because handlers wait for the interpreter's lock
    meanwhile. A thread of the Kafka library is known by its name. To save time, the name of a
    thread that is already known is not read again. If a pinned thread makes a Kafka client, the
    client's threads begin pinned to the same CPU, and are unpinned when their names are read.
    """

    def __init__(self) -> None:
        self._every = os.sched_getaffinity(0)
        self._own: dict[str, bool] = {}
        self._young: set[str] = set()  # these may not have been given their names yet

    def place(self, cpus: set[int]) -> None:
        for task, own in self._tasks().items():
            if own:
                _pin(task, cpus)

    def load(self) -> CpuLoad:
        """Returns the CPU time of the threads that are pinned, and the idle time of each CPU."""
        others_s = sum(_ran_s(task) for task, own in self._tasks().items() if not own)
        return CpuLoad(time.process_time() - others_s, _idle_s())

    def _tasks(self) -> dict[str, bool]:
        """Returns this process's threads; True for those that are not the Kafka library's."""
        present = os.listdir(_TASKS)
        known = {task: self._own[task] for task in present if task in self._own}
        read = {task: _is_own(task) for task in present if task not in known}
        self._own = known | {task: own for task, own in read.items() if task in self._young}
        self._young = read.keys() - self._own
        for task, own in read.items():
            if not own:
                _pin(task, self._every)
        return known | read


def _pin(task: str, cpus: set[int]) -> None:
    with suppress(OSError):  # it has ended, or that CPU was taken from us: anywhere
        os.sched_setaffinity(int(task), cpus)


def _ran_s(task: str) -> float:
    try:
        return int(Path(_TASKS, task, "schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _idle_s() -> dict[int, float]:
    idle_s = {}
    with suppress(OSError):
        for line in _CPUS.read_text().splitlines():
            if not line.startswith("cpu"):
                break  # there may be much more, which nobody needs
            name, *ticks = line.split()
            if name != "cpu":
                idle_s[int(name.removeprefix("cpu"))] = sum(map(int, ticks[_IDLE])) / _TICKS
    return idle_s


def _is_own(task: str) -> bool:
    try:
        return not Path(_TASKS, task, "comm").read_text().startswith(_LIBRARY)
    except OSError:
        return False
