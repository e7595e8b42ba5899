"""The time for which a pool has completed nothing although it has work: is it stuck?"""

_GAP_S = 1.0


class StallTimer:
    """Measures the time since a pool with work last completed a record.

    Owned by the poll thread, which updates it each turn; times are monotonic seconds. A longer
    gap between two updates starts it anew, since nothing was taken from the pool meanwhile.
    """

    def __init__(self) -> None:
        self._since = self._updated = 0.0

    def update(self, now: float, *, ended: bool, has_work: bool) -> None:
        """`has_work`: records were handed over, or could be, and have not come back."""
        if ended or not has_work or now - self._updated > _GAP_S:
            self._since = now
        self._updated = now

    @property
    def stalled_s(self) -> float:
        """The time as of the last update. Handlers may be running: the caller must check that."""
        return self._updated - self._since
