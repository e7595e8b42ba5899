"""A contender with a loop of its own, timed from outside by its group's committed position."""

import time
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import psutil

from bench.topic import Group

START_S = 60.0
LOOK_S, LOOK_S_MOST = 0.02, 0.1
SLOWEST = 1000.0  # records a second
SAMPLE_S = 0.5  # between two looks at the memory


class Broken(Exception):
    """A contender failed, so that its figure is worthless."""


class Measured(NamedTuple):
    """How many records a contender did, in which time, and the most memory it had meanwhile.

    `peak_bytes` of kworker and of frameworks is the largest of some samples, of the service with
    all its processes; of pages that they share with other programs, each counts a part. A program
    of `bench.handwritten` tells its own exact peak, with all pages, those of shared libraries, too.
    So the same memory is somewhat more in the figure of what is written by hand.
    """

    records: int
    seconds: float
    peak_bytes: int


def wait_until_done(group: Group, begun: Path, records: int, process: Popen[bytes]) -> Measured:
    """Waits until no record is left; the time is from the first call of a handler.

    `begun` is the file in which the contender wrote the monotonic time of that call. A late look
    counts against the contender. Looks cost the broker CPU, which raw loops do not pay for, so they
    are frequent only near the end. Raises Broken if the contender is too slow, or has ended.
    """
    started = sampled = time.monotonic()
    deadline = started + START_S + records / SLOWEST
    peak_bytes = 0
    while left := group.left():
        now = time.monotonic()
        if process.poll() is not None:
            raise Broken(f"it ended with exit code {process.returncode}, {left:,} records are left")
        if now - sampled >= SAMPLE_S:
            sampled, peak_bytes = now, max(peak_bytes, memory_bytes(process.pid))
        if now > deadline:
            raise Broken(f"{left:,} of {records:,} records are left after the deadline")
        expected_s = (now - started) * left / max(1, records - left)
        time.sleep(min(max(LOOK_S, expected_s / 16), LOOK_S_MOST))
    seconds = time.monotonic() - float(begun.read_text())
    return Measured(records, seconds, max(peak_bytes, memory_bytes(process.pid)))


def memory_bytes(pid: int) -> int:
    """The memory of a process and all below it; of pages that they share, each counts a part."""
    process = psutil.Process(pid)
    return sum(_proportional_bytes(each) for each in (process, *process.children(recursive=True)))


def _proportional_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0  # it has ended since
