"""The number of records that are claimed ahead of the handlers."""

_AHEAD_S = 0.06  # of what the handlers take: longer than two calls to Redis
_MEASURED_S = 0.02
_FORGET = 0.3
AHEAD_MOST = 1_024


class ClaimPrefetch:
    """Decides how many records are claimed before handlers need them.

    The number follows the rate at which the handlers take records. With too few claims, handlers
    are idle. With too many, other workers wait for the claimed events. Owned by the poll thread.
    Times are monotonic seconds.
    """

    def __init__(self, handlers: int) -> None:
        """`handlers` is the number of handlers that may run at once."""
        self._least = min(max(2, handlers), AHEAD_MOST)
        self.ahead = self._least
        self._taken = 0
        self._since = 0.0
        self._rate = 0.0

    def took(self, records: int) -> None:
        """Counts records handed to the handlers. The number is negative for records put back."""
        self._taken += records

    def update(self, now: float) -> None:
        """Sets `ahead`, the number of records to claim before handlers need them.

        It follows the rate at which handlers took records lately.
        """
        passed_s = now - self._since
        if passed_s < _MEASURED_S:
            return
        self._rate += _FORGET * (self._taken / passed_s - self._rate)
        self._taken, self._since = 0, now
        self.ahead = min(AHEAD_MOST, max(self._least, int(self._rate * _AHEAD_S)))
