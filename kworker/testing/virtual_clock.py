"""A clock that stands still until it is told to go on."""

import time


class VirtualClock:
    """A monotonic clock that begins at 0, and a wall clock that begins at the true time.

    On both, time passes only when `go_on` is called.
    """

    def __init__(self) -> None:
        self._began = time.time()
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return self.passed_s

    def wall(self) -> float:
        return self._began + self.passed_s

    def wall_ms(self) -> int:
        return int(self.wall() * 1000)

    def go_on(self, seconds: float) -> None:
        self.passed_s += seconds
