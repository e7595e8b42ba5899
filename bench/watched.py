"""A contender with a loop of its own, timed from outside by its group's committed position."""

import time
from pathlib import Path
from subprocess import Popen

from bench.topic import Group

START_S = 60.0
LOOK_S, LOOK_S_MOST = 0.02, 0.1
SLOWEST = 1000.0  # records a second


class Broken(Exception):
    """A contender failed, so that its figure is worthless."""


def wait_until_done(group: Group, begun: Path, records: int, process: Popen[bytes]) -> float:
    """Waits until no record is left; returns the seconds since the first call of a handler.

    `begun` is the file in which the contender wrote the monotonic time of that call. A late look
    counts against the contender. Looks cost the broker CPU, which raw loops do not pay for, so they
    are frequent only near the end. Raises Broken if the contender is too slow, or has ended.
    """
    started = time.monotonic()
    deadline = started + START_S + records / SLOWEST
    while left := group.left():
        now = time.monotonic()
        if process.poll() is not None:
            raise Broken(f"it ended with exit code {process.returncode}, {left:,} records are left")
        if now > deadline:
            raise Broken(f"{left:,} of {records:,} records are left after the deadline")
        expected_s = (now - started) * left / max(1, records - left)
        time.sleep(min(max(LOOK_S, expected_s / 16), LOOK_S_MOST))
    return time.monotonic() - float(begun.read_text())
