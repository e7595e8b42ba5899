"""Where a group stands in a partition, and where it may be put."""

from typing import Literal, NamedTuple


class Offset(NamedTuple):
    """So many records from a partition's beginning of time."""

    number: int


class Time(NamedTuple):
    """The first record of that time or later."""

    ms: int


Goal = Literal["earliest", "latest"] | Offset | Time
"""Where to put a group."""


class GroupPosition(NamedTuple):
    """One partition: the group's position, and what there is to read."""

    topic: str
    partition: int
    committed: int | None  # None: the group has no position
    low: int  # the first offset that the partition holds
    high: int  # the one after its last
    finished_beyond: int = 0  # offsets beyond the position that are done, too
    made_again: bool = False  # the topic was: the position is of the one before, and not believed

    @property
    def at(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def lag(self) -> int | None:
        """Records that are there and not yet settled."""
        if self.made_again:
            return self.high - self.low
        return None if self.committed is None else max(0, self.high - max(self.committed, self.low))

    @property
    def expired(self) -> int:
        """Records that were deleted before the group had them."""
        if self.committed is None or self.made_again:
            return 0
        return max(0, self.low - self.committed)

    def clamped(self, position: int) -> int:
        """The position within what the partition holds that is nearest."""
        return min(max(position, self.low), self.high)


class Move(NamedTuple):
    """A partition and its new position; `wanted` is what was asked for."""

    standing: GroupPosition
    wanted: int

    @property
    def position(self) -> int:
        return self.standing.clamped(self.wanted)

    @property
    def clamped(self) -> bool:
        return self.position != self.wanted
