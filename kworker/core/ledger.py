"""The ledger of one partition: the position to commit, and the records done beyond it.

The one place that adds 1 to an offset.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from kworker.core.offset_map import OffsetRange, fits

_FORGET_LEAST = 4_096  # settled records beyond an unsettled one, before they are forgotten
_SAMPLES_MOST = 1_024


class Ledger:
    """The records of one partition that were delivered and are not yet settled.

    Owned by the poll thread, for one assignment. Offsets come from the records received, in
    ascending order. Up to the last of them, every offset that the ledger does not store counts as
    settled, even one that has no record (compaction, transaction markers). So the ledger can forget
    settled offsets: its size depends on the number of unsettled ones.
    """

    __slots__ = (
        "_before",
        "_begin",
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
        """`position` is the first offset to deliver; None if it is unknown until a record comes.

        `done` has ranges beyond the position that were settled in an earlier assignment: their
        records are delivered again, but not run.
        """
        self._end = position  # all offsets below were delivered or do not exist
        self._reached = self._begin = position or 0  # the same, as far as records show
        self._open: deque[int] = deque()  # delivered; the first one is not settled
        self._settled: set[int] = set()  # of `_open`, those settled beyond the first
        self._before = deque(done)  # ranges of `done` that are not yet delivered
        self._forgotten_to = (
            -1
        )  # end of the offsets that were settled beyond the first, and forgotten
        self._known: frozenset[int] = frozenset()  # `_open` when offsets were last forgotten
        self._known_to = 0  # `_reached` when offsets were last forgotten
        self._samples: deque[tuple[int, int]] = deque()  # (offset, timestamp) now and then
        self.version = 0  # changes whenever more is done

    @property
    def position(self) -> int | None:
        """The position to commit; None if it is not known yet.

        If the ledger was made without a position, the first delivered record, or the end of the
        partition (see `advance_end`), makes the position known.
        """
        if self._open:
            return self._open[0]
        return self._rest()[0] if self._before else self._end

    @property
    def end(self) -> int | None:
        """The offset from which records are still to be delivered; None if it is unknown."""
        return self._end

    @property
    def has_delivered(self) -> bool:
        """True once any record was delivered in this assignment."""
        return self._reached > self._begin

    @property
    def unsettled(self) -> int:
        """The number of delivered records that are not settled."""
        return len(self._open) - len(self._settled)

    @property
    def has_done_beyond(self) -> bool:
        """True if a record beyond the first unsettled one is settled."""
        forgotten = bool(self._open) and self._open[0] < self._forgotten_to
        return forgotten or bool(self._settled or self._before)

    def is_done(self, offset: int) -> bool:
        """Returns True if an offset is below the position, or was settled in an earlier assignment.

        Once the record of an offset beyond the position has been delivered again, the result may be
        False, even if the earlier assignment had settled it.
        """
        position = self.position
        if position is not None and offset < position:
            return True
        return any(begin <= offset < end for begin, end in self._before)

    def position_after(self, offsets: Collection[int] = ()) -> tuple[int | None, list[OffsetRange]]:
        """Returns the position and the ranges done beyond it, as if `offsets` were settled, too."""
        if self._settled:
            self._forget()
        opened = self._open_without(offsets)
        if not opened:
            return self._rest()
        runs = _gaps(opened)
        before, begin, end = list(self._before), opened[-1] + 1, self._reached
        if before and before[0][0] <= end:
            end = before.pop(0)[1]
        if begin < end:
            runs.append((begin, end))
        return opened[0], runs + before

    def _open_without(self, offsets: Collection[int]) -> list[int]:
        opened = list(self._open)
        if opened[: len(offsets)] == list(offsets):  # the usual case, and twice as fast
            return opened[len(offsets) :]
        settling = frozenset(offsets)
        return [offset for offset in opened if offset not in settling]

    def _rest(self) -> tuple[int | None, list[OffsetRange]]:
        """Returns the position and the ranges done beyond it.

        Assumes that every delivered record is settled.
        """
        before = list(self._before)
        if before and self._end is not None and before[0][0] <= self._end:
            return before[0][1], before[1:]
        return self._end, before

    # -- room -------------------------------------------------------------------------

    def count_fitting(self, offsets: Sequence[int]) -> int:
        """Returns how many of the ascending `offsets`, from the first on, may be delivered next.

        The records may be settled in any order. In every order, a commit's offset map must have
        room for the offsets that are done beyond the position. If nothing is unsettled, at least
        one record may be delivered, since a single one adds nothing to the map.
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
        """Returns True if `more` records may be delivered, the first of them at `offset`.

        A commit's offset map must have room for them, in whichever order records are settled.
        """
        return not self.unsettled or self._fits(more, offset, offset + more)

    def _fits(self, more: int, first: int, last: int) -> bool:
        if self._before and last < self._before[-1][1]:
            return True  # as it did when they were delivered before: fewer are unsettled now
        begin = first if self.position is None else self.position
        return fits(self.unsettled + more, last + 1 - begin)

    # -- delivery and settling --------------------------------------------------------

    def deliver(self, offset: int) -> bool:
        """Notes that a record was delivered.

        If it was delivered before in this assignment, changes nothing and returns False.
        """
        return self.deliver_run([offset]) is not None

    def deliver_run(self, offsets: list[int]) -> Collection[int] | None:
        """Notes that the records at these ascending offsets were delivered.

        Returns the offsets that were settled in an earlier assignment. Returns None, and changes
        nothing, if any of the records was delivered before in this assignment.
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
        """Notes that the partition ends at `position`: no record below it is still to come."""
        if self._end is None or position > self._end:
            self._end = position
            while self._before and self._before[0][1] <= position:
                self._before.popleft()  # its records are gone

    def settle(self, offsets: Collection[int]) -> None:
        """Marks delivered records as settled: all their outputs are durable.

        Some of them may be settled already.
        """
        opened, settled, known_to = self._open, self._settled, self._known_to
        self.version += 1
        if not settled and len(offsets) <= len(opened):
            first = [opened.popleft() for _ in offsets]
            if first == offsets:
                return
            opened.extendleft(reversed(first))
        if not opened:
            return
        if min(offsets, default=known_to) >= max(opened[0], known_to):
            settled.update(offsets)  # the usual case, and twice as fast
        else:
            begin, known = opened[0], self._known
            settled.update(
                [each for each in offsets if each >= begin and (each >= known_to or each in known)]
            )
        while settled and opened[0] in settled:
            settled.remove(opened.popleft())
        # Only when as much is gained as it costs, so that the cost per record is constant.
        if len(settled) >= _FORGET_LEAST and 2 * len(settled) >= len(opened):
            self._forget()

    def _forget(self) -> None:
        """Forgets the settled offsets. An offset that is not stored here counts as settled."""
        if settled := self._settled:
            highest = next(offset for offset in reversed(self._open) if offset in settled)
            self._forgotten_to = max(self._forgotten_to, highest + 1)
            self._open = deque([offset for offset in self._open if offset not in settled])
            self._settled = set()
        self._known, self._known_to = frozenset(self._open), self._reached

    # -- age --------------------------------------------------------------------------

    def sample_timestamp(self, offset: int, timestamp_ms: int) -> None:
        """Stores a record's timestamp as a sample, for the estimate that `oldest_ms` returns."""
        self._samples.append((offset, timestamp_ms))
        if len(self._samples) > _SAMPLES_MOST:
            # Every other one is precise enough.
            self._samples = deque(list(self._samples)[::2])

    def oldest_ms(self) -> int | None:
        """Returns the approximate timestamp (ms) of the oldest unsettled record.

        Returns None if all records are settled.
        """
        if not self._open:
            self._samples.clear()
            return None
        while len(self._samples) > 1 and self._samples[1][0] <= self._open[0]:
            self._samples.popleft()
        return self._samples[0][1] if self._samples else None


def _gaps(offsets: list[int]) -> list[OffsetRange]:
    """Returns the ranges between these ascending offsets."""
    if offsets[-1] - offsets[0] < len(offsets):
        return []
    return [(one + 1, other) for one, other in pairwise(offsets) if one + 1 < other]
