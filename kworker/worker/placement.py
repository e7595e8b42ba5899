"""Where a worker's threads run: apart while they wait, on one CPU while they compute.

The interpreter's lock lets one of them run at a time. When each hand-over of that lock goes to
another CPU, all that a record is made of moves with it, and a cheap handler costs half as much
again. So while handlers are cheap and compute, all threads of Python keep to one CPU. The Kafka
library's own threads, which never take that lock, stay free.
"""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

_libc = ctypes.CDLL(None)
_TASKS = Path("/proc/self/task")
_LIBRARY = "rdk:"  # how librdkafka's threads are called


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """How long one CPU is kept before the scheduler may choose anew, and how long that takes."""

    keep_s: float = 5.0
    choose_s: float = 0.05


class Placement:
    """The CPUs of this process's threads. Owned by the poll thread."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self._policy = policy
        self._every = os.sched_getaffinity(0)
        self._together = False
        self._until = 0.0

    def decide(self, together: bool, now: float) -> None:
        """Called now and then; `together` while handlers are cheap and compute."""
        if not together:
            if self._together:
                self._spread()
        elif now >= self._until and len(self._every) > 1:
            # A CPU that has become crowded is left: the scheduler chooses, then we stay.
            if self._together:
                self._spread()
                self._until = now + self._policy.choose_s
            else:
                self._gather()
                self._until = now + self._policy.keep_s

    def _gather(self) -> None:
        self._together = True
        _place({_libc.sched_getcpu()})

    def _spread(self) -> None:
        self._together = False
        _place(self._every)


def _place(cpus: set[int]) -> None:
    for thread in _TASKS.iterdir():
        try:
            if not (thread / "comm").read_text().startswith(_LIBRARY):
                os.sched_setaffinity(int(thread.name), cpus)
        except OSError:
            pass  # the thread has ended, or the CPU has been taken from us: anywhere will do
