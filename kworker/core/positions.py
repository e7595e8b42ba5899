"""A group's position in a partition, and the positions it may be reset to."""

from typing import Literal, NamedTuple

from kworker.core.offset_map import Settled


class Offset(NamedTuple):
    """The target of a reset: the group continues at this offset."""

    number: int


class Time(NamedTuple):
    """The target of a reset: the first record with this timestamp or a later one."""

    ms: int


Goal = Literal["earliest", "latest"] | Offset | Time
"""The position to reset a group to."""


class GroupPosition(NamedTuple):
    """A group's position in one partition, and the offsets that the partition holds."""

    topic: str
    partition: int
    committed: int | None  # None: the group has no position
    low: int  # the first offset that the partition holds
    high: int  # the offset after its last
    settled: Settled | None = None  # what the commit settles; None if that was not read

    @property
    def at(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def made_again(self) -> bool:
        """True if the topic was recreated after the commit: the position is outdated."""
        if self.committed is None or self.settled is None:
            return False
        return self.settled.position < self.committed

    @property
    def lag(self) -> int | None:
        """The number of offsets in the partition from the position on; None without a position."""
        if self.made_again:
            return self.high - self.low
        return None if self.committed is None else max(0, self.high - max(self.committed, self.low))

    @property
    def finished_beyond(self) -> int:
        """The number of offsets in the lag that are finished, by the offset map of the commit."""
        held = range(self.low, self.high)
        return 0 if self.settled is None else self.settled.count_beyond(held)

    @property
    def behind(self) -> int:
        """The lag; without a position, the number of all offsets that the partition holds."""
        return max(0, self.high - self.low) if self.lag is None else self.lag

    @property
    def unfinished(self) -> int:
        """The number of offsets in the partition that the group has not finished."""
        return self.behind - self.finished_beyond

    @property
    def expired(self) -> int:
        """The number of records that were deleted before the group had read them."""
        if self.committed is None or self.made_again:
            return 0
        return max(0, self.low - self.committed)

    def clamped(self, position: int) -> int:
        """Returns the position nearest to `position` that the partition holds."""
        return min(max(position, self.low), self.high)


class Move(NamedTuple):
    """A reset of the group's position in one partition.

    `wanted` is the requested position. The property `position` is the new position: the one nearest
    to `wanted` that the partition holds.
    """

    current: GroupPosition
    wanted: int

    @property
    def position(self) -> int:
        return self.current.clamped(self.wanted)

    @property
    def clamped(self) -> bool:
        return self.position != self.wanted
