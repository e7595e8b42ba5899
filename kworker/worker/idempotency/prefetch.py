"""How many records are claimed ahead of the handlers: enough for a while, not for ever."""

_AHEAD_S = 0.06  # of what the handlers take: two exchanges with Redis, and some
_MEASURED_S = 0.02
_FORGET = 0.3
AHEAD_MOST = 1_024


class ClaimPrefetch:
    """Claims nobody waits for cost the others that want them; too few leave handlers idle.

    Owned by the poll thread. Times are monotonic seconds.
    """

    def __init__(self, handlers: int) -> None:
        """`handlers` may run at once."""
        self._least = min(max(2, handlers), AHEAD_MOST)
        self.ahead = self._least
        self._taken = 0
        self._since = 0.0
        self._rate = 0.0

    def took(self, records: int) -> None:
        """The handlers were given so many."""
        self._taken += records

    def look(self, now: float) -> None:
        """Adapts `ahead` to what they took lately."""
        passed_s = now - self._since
        if passed_s < _MEASURED_S:
            return
        self._rate += _FORGET * (self._taken / passed_s - self._rate)
        self._taken, self._since = 0, now
        self.ahead = min(AHEAD_MOST, max(self._least, int(self._rate * _AHEAD_S)))
