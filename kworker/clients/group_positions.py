"""Reads the positions of a consumer group, and the offsets that its partitions hold."""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, Protocol

from kworker.config.topics import TopicInfo
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed, Settled, TopicIdentity
from kworker.core.positions import GroupPosition

Spans = Mapping[PartitionId, range]
"""The offsets that each partition holds."""


class PositionsAdmin(Protocol):
    """The methods of `Admin` that read topic ids, a group's positions, and partitions' offsets."""

    def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]: ...
    def group_offsets(
        self, group: str, partitions: Iterable[PartitionId], *, stable: bool = True
    ) -> dict[PartitionId, Committed]: ...
    def list_offsets(
        self,
        partitions: Iterable[PartitionId],
        which: Literal["earliest", "latest"] | int,
        *,
        committed: bool = False,
    ) -> dict[PartitionId, int]: ...


class GroupAdmin(PositionsAdmin, Protocol):
    """The methods of `Admin` that find a service's topics, and the positions in them."""

    def topic_names(self) -> list[str]: ...
    def topics(self, names: Iterable[str], config: Iterable[str] = ()) -> dict[str, TopicInfo]: ...


def offset_spans(
    admin: PositionsAdmin, partitions: Collection[PartitionId], *, committed: bool = False
) -> dict[PartitionId, range]:
    """Returns the range of offsets in each partition.

    With `committed`, a range ends before the first open transaction in its partition. Sends two
    requests for any number of partitions.
    """
    high = admin.list_offsets(partitions, "latest", committed=committed)
    low = admin.list_offsets(partitions, "earliest")
    return {at: range(low[at], high[at]) for at in partitions}


def group_positions(
    admin: PositionsAdmin, group: str, held: Spans, *, stable: bool = True
) -> list[GroupPosition]:
    """Returns the group's position in each partition; `held` has each partition's offsets.

    If `stable` is False, does not wait for open transactions that are to change a position.
    """
    found = admin.group_offsets(group, held, stable=stable)
    settled = _settled(admin, found)
    return [
        GroupPosition(
            *at,
            found[at].position if at in found else None,
            span.start,
            span.stop,
            settled.get(at, Settled(0)),
        )
        for at, span in held.items()
    ]


def settled_offsets(
    admin: PositionsAdmin, group: str, partitions: Collection[PartitionId]
) -> dict[PartitionId, Settled]:
    """Returns the offsets that the group has settled; leaves out partitions without a position."""
    return _settled(admin, admin.group_offsets(group, partitions))


def _settled(
    admin: PositionsAdmin, found: Mapping[PartitionId, Committed]
) -> dict[PartitionId, Settled]:
    ids = admin.identities({topic for topic, _ in found}) if found else {}
    return {at: Settled.of(each, ids.get(at[0]), at) for at, each in found.items()}
