"""When a record that failed runs again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InPlaceRetry:
    """A failing record waits in its lane, longer each time."""

    first_s: float = 1.0
    most_s: float = 30.0

    def delay_s(self, attempt: int) -> float:
        """Seconds to wait after the `attempt`-th run, counted from 1, has failed."""
        return float(min(self.most_s, self.first_s * 2 ** min(attempt - 1, 30)))
