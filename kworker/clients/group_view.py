"""The lag and the owner of every partition of a consumer group, as the brokers say."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from kworker.clients.admin import Admin
from kworker.clients.admin_connection import SILENT, AdminRequestError, reason_of
from kworker.clients.topic_partitions import committed_in
from kworker.core.message import PartitionId

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class GroupView:
    """The lag and the owner of each partition of a group, at one moment.

    `behind` is the number of offsets between the group's position and the partition's end. `owners`
    has each assigned partition's member: its `group.instance.id`, or else its client id.
    """

    behind: Mapping[PartitionId, int]
    owners: Mapping[PartitionId, str]


class GroupWatcher:
    """Reads the lag and the owners of one group without joining it. Used by one thread at a time.

    Every call blocks for some seconds at most. Raises `Unreachable` if no broker answers. Raises
    `AdminRequestError` if a broker refuses, or does not report the group's positions in time.
    """

    def __init__(self, properties: Mapping[str, Any], group: str) -> None:
        self._admin = Admin(properties, timeout_s=_TIMEOUT_S)
        self._group = group
        # Never a member. It reads positions that are not stable yet, so that no open
        # transaction hides them: one that hangs would for days.
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "group.protocol": "classic",
            "isolation.level": "read_uncommitted",
        }
        self._consumer = Consumer({**properties, **own}, logger=SILENT)

    def topic_names(self) -> list[str]:
        return self._admin.topic_names()

    def read(self, topics: Collection[str]) -> GroupView:
        """Returns the present lag of each partition of these topics, and the partitions' owners.

        Leaves out topics that do not exist.
        """
        found = self._admin.topics(topics)
        partitions = [(name, n) for name in found for n in range(found[name].partitions)]
        ends = self._admin.list_offsets(partitions, "latest", committed=True)
        held = self._positions(partitions)
        without = [at for at in partitions if at not in held]
        begins = {**self._admin.list_offsets(without, "earliest"), **held}
        behind = {at: max(0, ends[at] - begins[at]) for at in partitions}
        return GroupView(behind, self._admin.group_owners(self._group))

    def _positions(self, partitions: Collection[PartitionId]) -> dict[PartitionId, int]:
        asked = [TopicPartition(*at) for at in partitions]
        try:
            answer = self._consumer.committed(asked, timeout=_TIMEOUT_S)
        except KafkaException as error:
            raise AdminRequestError(reason_of(error)) from None
        held = {(tp.topic, tp.partition): committed_in(tp) for tp in answer}
        return {at: each.position for at, each in held.items() if each is not None}
