"""A steady rate: the time at which each of many acts is due."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Spreads acts evenly at `rate` a second; None is without a limit."""

    rate: float | None
    _done: int = 0
    _began: float | None = None

    def rest_s(self, now: float) -> float:
        """Counts one act; returns the seconds to rest before it."""
        if self.rate is None:
            return 0.0
        if self._began is None:
            self._began = now
        due = self._began + self._done / self.rate
        self._done += 1
        return max(0.0, due - now)
