"""Partitions that no worker has, and for how long already."""

from collections.abc import Collection, Mapping

from kworker.core.message import PartitionId

_NAMED_MOST = 5


class Ownership:
    """Since when which partitions of a group have been nobody's.

    Owned by the supervisor. Times are monotonic seconds.
    """

    def __init__(self, patience_s: float) -> None:
        """Whatever is nobody's for so long is told: longer than most rebalances."""
        self._patience_s = patience_s
        self._since: dict[PartitionId, float] = {}

    def hear(self, unowned: Collection[PartitionId], now: float) -> None:
        """These have no owner now."""
        self._since = {at: self._since.get(at, now) for at in unowned}

    def reason(self, behind: Mapping[PartitionId, int], now: float) -> str | None:
        """What is wrong, in a line: of those that have been nobody's for long."""
        long = sorted(at for at, since in self._since.items() if now - since >= self._patience_s)
        if not long:
            return None
        names = ", ".join(f"{topic}/{number}" for topic, number in long[:_NAMED_MOST])
        more = f" and {len(long) - _NAMED_MOST} more" if len(long) > _NAMED_MOST else ""
        longest_s = now - min(self._since[at] for at in long)
        records = sum(behind.get(at, 0) for at in long)
        return (
            f"no worker has {names}{more}, for {longest_s:.0f} s: {records:,} records wait; the"
            " group gives them out when the session of the member that had them is over"
        )
