"""Stack dumps of the whole service, one process after the other."""

import faulthandler
import os
import signal
import sys
from collections import deque
from collections.abc import Iterable

from kworker.instance.proc import command_line
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
        _head(os.getpid())
        faulthandler.dump_traceback(all_threads=True)
        self._waiting = deque(processes)
        return [process.pid for process in self._waiting if process.pid]

    def turn(self, now: float) -> None:
        """Has the next child dump its stacks, by SIGUSR1, if `gap_s` have passed since the last."""
        if self._waiting and now >= self._next_at:
            self._next_at = now + self._gap_s
            process = self._waiting.popleft()
            if process.pid:
                _head(process.pid)
                process.signal(signal.SIGUSR1)


def _head(pid: int) -> None:
    """Writes a heading above the stacks of a process: plain text, whatever the log's settings."""
    try:
        sys.stderr.write(f"stacks of {command_line(pid)} (pid {pid}), by thread:\n")
        sys.stderr.flush()
    except OSError:  # a full disk or a lost reader must not stop the service
        pass
