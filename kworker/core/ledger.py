"""What of one partition may be committed: a position, and what is done beyond it.

The one place that adds 1 to an offset.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from kworker.core.offset_map import OffsetRange, fits, size

_FORGET_LEAST = 4_096  # settled records beyond one that is not, before they are forgotten
_SAMPLES_MOST = 1_024


class Ledger:
    """The records of one partition that were delivered and are not yet settled.

    Owned by the poll thread, for one assignment. Offsets are learned from records
    received, in ascending order; what lies between two of them (compaction, markers
    of transactions) does not exist and is the same as settled. So what is settled may
    be forgotten, and a ledger is about as large as what is not.
    """

    __slots__ = (
        "_before",
        "_end",
        "_forgotten_to",
        "_known",
        "_known_to",
        "_open",
        "_reached",
        "_samples",
        "_settled",
        "version",
    )

    def __init__(self, position: int | None, done: Iterable[OffsetRange] = ()) -> None:
        """`position` is where delivery begins, or None when only the first record will tell.

        `done` beyond it are offsets that were settled before: they will come, and must not run.
        """
        self._end = position  # everything below was delivered or does not exist
        self._reached = position or 0  # the same, as far as records tell
        self._open: deque[int] = deque()  # delivered; the first one is not settled
        self._settled: set[int] = set()  # of those, settled beyond the first
        self._before = deque(done)  # where something is still to come
        self._forgotten_to = -1  # the end of what was settled beyond the first and is forgotten
        self._known: frozenset[int] = frozenset()  # open when something was last forgotten
        self._known_to = 0  # the end of what was delivered then
        self._samples: deque[tuple[int, int]] = deque()  # (offset, timestamp) now and then
        self.version = 0  # another one whenever more is done

    @property
    def position(self) -> int | None:
        """Everything below may be committed; None before the first record or end of partition."""
        if self._open:
            return self._open[0]
        return self._rest()[0] if self._before else self._end

    @property
    def end(self) -> int | None:
        """Where the next record is expected, or beyond."""
        return self._end

    @property
    def unsettled(self) -> int:
        """Delivered records that hold back or lie beyond the position, not yet settled."""
        return len(self._open) - len(self._settled)

    @property
    def has_done_beyond(self) -> bool:
        """Whether a record beyond the first that is not settled is."""
        forgotten = bool(self._open) and self._open[0] < self._forgotten_to
        return forgotten or bool(self._settled or self._before)

    def is_done(self, offset: int) -> bool:
        """Whether it is known as done that has not been delivered, or is below the position."""
        position = self.position
        if position is not None and offset < position:
            return True
        return any(begin <= offset < end for begin, end in self._before)

    def position_after(self, offsets: Collection[int] = ()) -> tuple[int | None, list[OffsetRange]]:
        """The position, and what is done beyond it, once these records will be settled, too."""
        if self._settled:
            self._forget()
        opened = [offset for offset in self._open if offset not in offsets]
        if not opened:
            return self._rest()
        runs = [(one + 1, other) for one, other in pairwise(opened) if one + 1 < other]
        before, begin, end = list(self._before), opened[-1] + 1, self._reached
        if before and before[0][0] <= end:
            end = before.pop(0)[1]
        if begin < end:
            runs.append((begin, end))
        return opened[0], runs + before

    def _rest(self) -> tuple[int | None, list[OffsetRange]]:
        """The same when nothing that was delivered is left."""
        before = list(self._before)
        if before and self._end is not None and before[0][0] <= self._end:
            return before[0][1], before[1:]
        return self._end, before

    # -- what may be delivered --------------------------------------------------------

    def count_fitting(self, offsets: Sequence[int]) -> int:
        """How many of these records, ascending, may be delivered next.

        So many that a commit can tell what is done beyond the position, whichever of them
        and of those before them are settled first. With nothing unsettled, at least one:
        what is done beyond a single record was told before, or is nothing.
        """
        most, least = len(offsets), 0 if self.unsettled else 1
        if self._fits(most, offsets[0], offsets[-1]):
            return most
        while least < most:
            middle = (least + most + 1) // 2
            if self._fits(middle, offsets[0], offsets[middle - 1]):
                least = middle
            else:
                most = middle - 1
        return least

    def has_room(self, more: int, offset: int) -> bool:
        """Whether so many records, from this offset on, may be delivered next."""
        return not self.unsettled or self._fits(more, offset, offset + more)

    def _fits(self, more: int, first: int, last: int) -> bool:
        end, rest = last + 1, 0
        begin = first if self.position is None else self.position
        if self._before:
            end = max(end, self._before[-1][1])
            rest = size(self._reached, [(max(b, self._reached), e) for b, e in self._before])
        return fits(self.unsettled + more, end - begin, rest)

    # -- what happens -----------------------------------------------------------------

    def deliver(self, offset: int) -> bool:
        """A record arrived; False, and nothing changes, when it was delivered before."""
        return self.deliver_run([offset]) is not None

    def deliver_run(self, offsets: list[int]) -> Collection[int] | None:
        """A run of records arrived, ascending: those of them that were settled before.

        None, and nothing changes, if any was delivered before.
        """
        if self._end is not None and offsets[0] < self._end:
            return None
        if self._before:
            return self._deliver_again(offsets)
        self._open.extend(offsets)
        self._end = self._reached = offsets[-1] + 1
        return ()

    def _deliver_again(self, offsets: list[int]) -> Collection[int]:
        self._end = self._reached = offsets[-1] + 1
        done: set[int] = set()
        while self._before and self._before[0][0] < self._end:
            begin, end = self._before[0]
            done.update(offsets[bisect_left(offsets, begin) : bisect_left(offsets, end)])
            self._forgotten_to = max(self._forgotten_to, min(end, self._end))
            if end > self._end:
                break
            self._before.popleft()
        self._open.extend(offset for offset in offsets if offset not in done)
        self._forget()
        self.version += 1
        return done

    def advance_end(self, position: int) -> None:
        """The end of the partition is at `position`: markers below it need no waiting."""
        if self._end is None or position > self._end:
            self._end = position
            while self._before and self._before[0][1] <= position:
                self._before.popleft()  # there is nothing of it any more

    def settle(self, offsets: Iterable[int]) -> None:
        """Everything about these delivered records is durable. Settling twice is harmless."""
        opened, settled, known_to = self._open, self._settled, self._known_to
        self.version += 1
        for offset in offsets:
            if not opened:
                return
            if opened[0] == offset:
                opened.popleft()
                while settled and opened[0] in settled:
                    settled.remove(opened.popleft())
            elif offset > opened[0] and (offset >= known_to or offset in self._known):
                settled.add(offset)
        # As much work as there is gain, so that it costs each record the same.
        if len(settled) >= _FORGET_LEAST and 2 * len(settled) >= len(opened):
            self._forget()

    def _forget(self) -> None:
        """What is settled beyond the first that is not leaves a gap, like what does not exist."""
        if settled := self._settled:
            highest = next(offset for offset in reversed(self._open) if offset in settled)
            self._forgotten_to = max(self._forgotten_to, highest + 1)
            self._open = deque([offset for offset in self._open if offset not in settled])
            self._settled = set()
        self._known, self._known_to = frozenset(self._open), self._reached

    # -- its age ----------------------------------------------------------------------

    def sample_timestamp(self, offset: int, timestamp_ms: int) -> None:
        """Remembers when about this offset was written, for `oldest_ms`."""
        self._samples.append((offset, timestamp_ms))
        if len(self._samples) > _SAMPLES_MOST:
            # Of what is not the oldest, every other one will do.
            self._samples = deque(list(self._samples)[::2])

    def oldest_ms(self) -> int | None:
        """About when the oldest unsettled record was written; None when all are settled."""
        if not self._open:
            self._samples.clear()
            return None
        while len(self._samples) > 1 and self._samples[1][0] <= self._open[0]:
            self._samples.popleft()
        return self._samples[0][1] if self._samples else None
