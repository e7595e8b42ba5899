"""Which position of one partition may be committed: the one place that adds 1 to an offset."""

from collections import deque
from collections.abc import Collection, Iterable


class Ledger:
    """The records of one partition that were delivered and are not yet settled.

    Owned by the poll thread, for one assignment. Offsets are learned from records
    received, in ascending order; what lies between two of them (compaction, markers
    of transactions) does not exist and is the same as settled.
    """

    __slots__ = ("_end", "_marks", "_open", "_settled")

    def __init__(self, position: int | None) -> None:
        """`position` is where delivery begins, or None when only the first record will tell."""
        self._end = position  # everything below was delivered or does not exist
        self._open: deque[int] = deque()  # delivered; the first one is not settled
        self._settled: set[int] = set()  # settled beyond the first open one
        self._marks: deque[tuple[int, int]] = deque()  # (offset, timestamp) now and then

    @property
    def position(self) -> int | None:
        """Everything below may be committed; None before the first record or end of partition."""
        return self._open[0] if self._open else self._end

    @property
    def end(self) -> int | None:
        """Where the next record is expected, or beyond."""
        return self._end

    @property
    def unsettled(self) -> int:
        """Delivered records that hold back or lie beyond the position, not yet settled."""
        return len(self._open) - len(self._settled)

    @property
    def beyond(self) -> int:
        """Records settled beyond the first that is not."""
        return len(self._settled)

    def deliver(self, offset: int) -> bool:
        """A record arrived; False, and nothing changes, when it was delivered before."""
        if self._end is not None and offset < self._end:
            return False
        self._open.append(offset)
        self._end = offset + 1
        return True

    def deliver_run(self, offsets: list[int]) -> bool:
        """A run of records arrived, ascending; False, and nothing changes, if any is old."""
        if self._end is not None and offsets[0] < self._end:
            return False
        self._open.extend(offsets)
        self._end = offsets[-1] + 1
        return True

    def reach(self, position: int) -> None:
        """The end of the partition is at `position`: markers below it need no waiting."""
        if self._end is None or position > self._end:
            self._end = position

    def settle(self, offsets: Iterable[int]) -> None:
        """Everything about these delivered records is durable. Settling twice is harmless."""
        opened, settled = self._open, self._settled
        for offset in offsets:
            if not opened:
                return
            if opened[0] == offset:
                opened.popleft()
                while settled and opened[0] in settled:
                    settled.remove(opened.popleft())
            elif offset > opened[0]:
                settled.add(offset)

    def highest_but(self, waiting: Collection[int]) -> int:
        """The highest offset from the position on that is not among `waiting`; -1 if none is."""
        return next((offset for offset in reversed(self._open) if offset not in waiting), -1)

    def after(self, offsets: Collection[int] = ()) -> tuple[int | None, list[tuple[int, int]]]:
        """The position once these records will be settled, too."""
        left = [o for o in self._open if o not in offsets and o not in self._settled]
        return (left[0] if left else self._end), []

    def mark(self, offset: int, timestamp_ms: int) -> None:
        """Remembers when about this offset was written, for `oldest_ms`."""
        self._marks.append((offset, timestamp_ms))

    def oldest_ms(self) -> int | None:
        """About when the oldest unsettled record was written; None when all are settled."""
        if not self._open:
            self._marks.clear()
            return None
        while len(self._marks) > 1 and self._marks[1][0] <= self._open[0]:
            self._marks.popleft()
        return self._marks[0][1] if self._marks else None
