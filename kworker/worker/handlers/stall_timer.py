"""For how long a pool has ended nothing although it should: the sign that it has stopped."""

_LOOKED_AWAY_S = 1.0


class StallTimer:
    """The time since a pool of handlers last ended a record, while it owes one.

    Owned by the poll thread, which looks each turn; times are monotonic seconds. Time in which
    it did not look says nothing, for meanwhile nobody took what ended.
    """

    def __init__(self) -> None:
        self._since = self._looked = 0.0

    def update(self, now: float, *, ended: bool, has_work: bool) -> None:
        """`has_work`: records were handed over, or could be, and did not come back yet."""
        if ended or not has_work or now - self._looked > _LOOKED_AWAY_S:
            self._since = now
        self._looked = now

    @property
    def stalled_s(self) -> float:
        """As of the last look. Handlers may be at work all the time; who asks must know that."""
        return self._looked - self._since
