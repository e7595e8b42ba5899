"""A group's position in a partition, and the positions it may be reset to."""

from typing import Literal, NamedTuple


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
    finished_beyond: int = 0  # number of offsets beyond the position that are done
    made_again: bool = False  # the position is of an earlier topic of this name, so it is not used

    @property
    def at(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def lag(self) -> int | None:
        """The number of offsets in the partition from the position on; None without a position."""
        if self.made_again:
            return self.high - self.low
        return None if self.committed is None else max(0, self.high - max(self.committed, self.low))

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
    """A partition and its new position; `wanted` is the requested one."""

    current: GroupPosition
    wanted: int

    @property
    def position(self) -> int:
        return self.current.clamped(self.wanted)

    @property
    def clamped(self) -> bool:
        return self.position != self.wanted
