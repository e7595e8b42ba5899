"""Ends the processes that a worker or its handlers started, if they outlive the worker."""

import os
import signal
from dataclasses import dataclass

import structlog

from kworker.instance.proc import command_line, group_pids

_LOG = structlog.get_logger()
_LOGGED_MAX = 10


@dataclass(slots=True)
class _Left:
    """The processes that one worker left behind; `number` is the number of that worker.

    `due` is the time of their next signal: SIGTERM, or SIGKILL if SIGTERM was sent before
    (`terminated`).
    """

    number: int
    due: float
    terminated: bool = False


class Leftovers:
    """The processes that workers started and left behind. Owned by the fleet.

    Each worker leads a process group. The processes that the worker or its handlers start belong
    to this group. A process that makes a session or group of its own leaves the group, and may
    outlive the worker. A process that ends within `grace_s` seconds of the worker's end, as an
    isolated process does, is not logged.
    """

    def __init__(self, grace_s: float, term_s: float) -> None:
        self._grace_s = grace_s
        self._term_s = term_s
        self._left: dict[int, _Left] = {}  # by group, which is the worker's pid

    @property
    def any(self) -> bool:
        """True if a process that a worker left behind may still be running."""
        return bool(self._left)

    def add(self, number: int, pid: int, now: float) -> None:
        """Notes the processes, if any, that a reaped worker left; `pid` was the worker's."""
        if group_pids(pid):
            self._left[pid] = _Left(number, now + self._grace_s)

    def turn(self, now: float) -> None:
        """Ends the processes that still run `grace_s` after the end of their worker.

        Sends them SIGTERM, and `term_s` later SIGKILL.
        """
        for group, left in list(self._left.items()):
            if not (pids := group_pids(group)):
                del self._left[group]
            elif now >= left.due and left.terminated:
                del self._left[group]
                _LOG.warning(
                    f"processes that worker {left.number} left behind did not end in time: killed",
                    left=pids,
                )
                _send(group, signal.SIGKILL)
            elif now >= left.due:
                left.terminated, left.due = True, now + self._term_s
                self._warn(left.number, pids)
                _send(group, signal.SIGTERM)

    def _warn(self, number: int, pids: list[int]) -> None:
        processes = "a process" if len(pids) == 1 else f"{len(pids)} processes"
        _LOG.warning(
            f"worker {number} left {processes} behind: SIGTERM now, SIGKILL in {self._term_s:g} s;"
            " a process that shall outlive its worker needs a session of its own (setsid)",
            left=[f"{pid} {command_line(pid)}".rstrip() for pid in pids[:_LOGGED_MAX]],
        )


def _send(group: int, signum: int) -> None:
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):  # the group has ended; its id may be reused
        pass
