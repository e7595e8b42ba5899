"""Stack dumps of the whole service, one process after the other."""

import faulthandler
import signal
from collections import deque
from collections.abc import Iterable

from kworker.supervisor.children.worker_process import WorkerProcess


class StackDumps:
    """A queue of children that have still to dump their stacks. Owned by the supervisor.

    The children are told to dump `gap_s` seconds apart, because two processes that write at once
    would mix their lines.
    """

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._waiting: deque[WorkerProcess] = deque()
        self._next_at = 0.0

    def begin(self, processes: Iterable[WorkerProcess]) -> list[int]:
        """Writes the stacks of this process to standard error; returns the pids of `processes`.

        These children dump their own stacks in later calls of `turn`.
        """
        faulthandler.dump_traceback(all_threads=True)
        self._waiting = deque(processes)
        return [process.pid for process in self._waiting if process.pid]

    def turn(self, now: float) -> None:
        """Sends SIGUSR1 to the next child, if its turn has come. The child dumps its stacks."""
        if self._waiting and now >= self._next_at:
            self._next_at = now + self._gap_s
            self._waiting.popleft().signal(signal.SIGUSR1)
