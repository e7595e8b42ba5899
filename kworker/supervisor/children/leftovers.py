"""Processes that workers started and left behind: they end after their worker does."""

import os
import signal
from dataclasses import dataclass

import structlog

from kworker.instance.proc import command_line, group_pids

_log = structlog.get_logger()
_NAMED_MOST = 10


@dataclass(slots=True)
class _Left:
    """One worker's, and when it is their turn again: to be told first, then to be killed."""

    number: int
    due: float
    terminated: bool = False


class Leftovers:
    """What is left in the process groups of workers that have ended. Owned by the fleet.

    A worker leads a group, to which all belongs that it or its handlers started, whoever their
    parent is by now. What took a session or a group of its own is meant to outlive it. What
    ends by itself within `grace_s`, as a cell does, is not spoken of.
    """

    def __init__(self, grace_s: float, term_s: float) -> None:
        self._grace_s = grace_s
        self._term_s = term_s
        self._left: dict[int, _Left] = {}  # by group, which is the worker's pid

    @property
    def any(self) -> bool:
        """Some may still be there."""
        return bool(self._left)

    def add(self, number: int, pid: int, now: float) -> None:
        """A worker with this pid has been reaped: what it left will be ended."""
        if group_pids(pid):
            self._left[pid] = _Left(number, now + self._grace_s)

    def turn(self, now: float) -> None:
        """Tells those to end that are still there, and kills them when they do not."""
        for group, left in list(self._left.items()):
            if not (pids := group_pids(group)):
                del self._left[group]
            elif now >= left.due and left.terminated:
                del self._left[group]
                _log.warning(f"what worker {left.number} left did not end: killed", left=pids)
                _send(group, signal.SIGKILL)
            elif now >= left.due:
                left.terminated, left.due = True, now + self._term_s
                self._warn(left.number, pids)
                _send(group, signal.SIGTERM)

    def _warn(self, number: int, pids: list[int]) -> None:
        noun = "a process" if len(pids) == 1 else f"{len(pids)} processes"
        _log.warning(
            f"worker {number} left {noun} behind: told to end, and killed in {self._term_s:g} s;"
            " what shall stay needs a session of its own",
            left=[f"{pid} {command_line(pid)}".rstrip() for pid in pids[:_NAMED_MOST]],
        )


def _send(group: int, signum: int) -> None:
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):  # it has ended, and its number may be another's
        pass
