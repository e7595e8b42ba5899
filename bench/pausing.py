"""A service of kworker that can be paused, so that others have the machine for themselves."""

import contextlib
import time

import psutil


class Pausing:
    """A service of which all processes are paused, except in its turns.

    `turns` has their monotonic times, in nanoseconds: from `go_on` to `pause`.
    """

    def __init__(self, pid: int) -> None:
        service = psutil.Process(pid)
        self._processes = [service, *service.children(recursive=True)]
        self._began = time.monotonic_ns()
        self.turns: list[tuple[int, int]] = []
        self.pause()
        self.turns.clear()

    def pause(self) -> None:
        """Stops the supervisor first, which would miss its workers."""
        self.turns.append((self._began, time.monotonic_ns()))
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # was a short-lived one
                process.suspend()

    def go_on(self) -> None:
        """Lets the supervisor go on last."""
        for process in reversed(self._processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._began = time.monotonic_ns()
