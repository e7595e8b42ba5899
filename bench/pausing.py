"""A service of kworker that can be paused, so that others have the machine for themselves."""

import contextlib

import psutil

# A paused worker must stay in its group.
LONG_SESSION = {"KWORKER_KAFKA__SESSION_TIMEOUT_MS": "60000"}


class Pausing:
    """A service of which all processes are paused, except between `go_on` and `pause`."""

    def __init__(self, pid: int) -> None:
        service = psutil.Process(pid)
        self._processes = [service, *service.children(recursive=True)]
        self.pause()

    def pause(self) -> None:
        """Stops the supervisor first, which would miss its workers."""
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # was a short-lived one
                process.suspend()

    def go_on(self) -> None:
        """Lets the supervisor go on last."""
        for process in reversed(self._processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
