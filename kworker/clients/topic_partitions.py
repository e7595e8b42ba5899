"""Converts positions to librdkafka's TopicPartitions, and back."""

from collections.abc import Mapping

from confluent_kafka import TopicPartition

from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed


def offsets_of(positions: Mapping[PartitionId, Committed]) -> list[TopicPartition]:
    """Converts positions to librdkafka's TopicPartitions, for a commit or a transaction.

    The library adds a NUL to metadata, so empty metadata is left out.
    """
    return [
        TopicPartition(*at, *held) if held.metadata else TopicPartition(*at, held.position)
        for at, held in positions.items()
    ]


def committed_in(answer: TopicPartition) -> Committed | None:
    """Returns the committed position in librdkafka's answer; None if there is none."""
    return Committed(answer.offset, answer.metadata or "") if answer.offset >= 0 else None
