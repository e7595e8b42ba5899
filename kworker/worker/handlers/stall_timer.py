"""The time for which a pool has completed nothing although it has work: is it stuck?"""

_GAP_S = 1.0


class StallTimer:
    """Measures the time since a pool with work last completed a record.

    Owned by the poll thread, which updates it each turn. Times are monotonic seconds. If a second
    passes without an update, the measurement starts anew, because the poll thread collected no
    records meanwhile.
    """

    def __init__(self) -> None:
        self._since = self._updated = 0.0

    def update(self, now: float, *, ended: bool, has_work: bool) -> None:
        """Starts the measurement anew if a record has ended, or if the pool has no work."""
        if ended or not has_work or now - self._updated > _GAP_S:
            self._since = now
        self._updated = now

    @property
    def stalled_s(self) -> float:
        """The seconds for which a pool with work has completed no record.

        They also grow while a handler runs for long. So the pool is stuck only if no handler runs
        either, which the caller must check.
        """
        return self._updated - self._since
