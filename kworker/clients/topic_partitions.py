"""Positions as librdkafka's TopicPartitions, and back."""

from collections.abc import Mapping

from confluent_kafka import TopicPartition

from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed


def offsets_of(positions: Mapping[PartitionId, Committed]) -> list[TopicPartition]:
    """As the library takes them, in commits and in transactions.

    It adds a NUL to what is text, so what is empty is none.
    """
    return [
        TopicPartition(*at, *held) if held.metadata else TopicPartition(*at, held.position)
        for at, held in positions.items()
    ]


def committed_in(answer: TopicPartition) -> Committed | None:
    """What the library says that a group holds; None: nothing."""
    return Committed(answer.offset, answer.metadata or "") if answer.offset >= 0 else None
