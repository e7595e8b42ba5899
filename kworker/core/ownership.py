"""Partitions without an owner in the group, and for how long."""

from collections.abc import Collection, Mapping

from kworker.core.message import PartitionId

_NAMED_MOST = 5


class Ownership:
    """Measures for how long partitions of a group have had no owner.

    Owned by the supervisor. Times are monotonic seconds.
    """

    def __init__(self, patience_s: float) -> None:
        """A partition without an owner is reported by `problem` after `patience_s`."""
        self._patience_s = patience_s
        self._since: dict[PartitionId, float] = {}

    def update(self, unowned: Collection[PartitionId], now: float) -> None:
        """Stores the partitions that have no owner now."""
        self._since = {at: self._since.get(at, now) for at in unowned}

    def problem(self, unowned: Mapping[PartitionId, int], now: float) -> str | None:
        """Returns a line about the partitions that have had no owner for too long.

        `unowned` has the partitions without an owner now, which may be fewer than at the last
        `update`, and the number of records that wait in each. Returns None if no partition
        has been without an owner for too long.
        """
        since = self._since
        long = sorted(at for at in unowned if now - since.get(at, now) >= self._patience_s)
        if not long:
            return None
        names = ", ".join(f"{topic}/{number}" for topic, number in long[:_NAMED_MOST])
        more = f" and {len(long) - _NAMED_MOST} more" if len(long) > _NAMED_MOST else ""
        longest_s = now - min(since[at] for at in long)
        records = sum(unowned[at] for at in long)
        return (
            f"no worker has {names}{more}, for {longest_s:.0f} s: {records:,} records wait; the"
            " group assigns them when the session of the member that had them is over"
        )
