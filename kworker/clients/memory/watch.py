"""The requests of the delay process about topics, answered by Kafka in memory."""

from collections.abc import Iterable

from kworker.clients.memory.broker import MemoryKafka
from kworker.core.message import PartitionId


class MemoryWatch:
    """The twin of `KafkaWatch` for tests: every answer is available at once."""

    rejection = ""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self._asked: list[str] = []
        self._ends: list[PartitionId] = []
        self._facts: list[str] = []

    def ask_facts(self, topics: Iterable[str]) -> None:
        self._facts = list(topics)

    def facts(self) -> tuple[dict[str, int], dict[str, int]] | None:
        """Returns the size limits and the partition counts of the topics that exist.

        Returns None if `ask_facts` was not called since the last answer.
        """
        asked, self._facts = self._facts, []
        there = {name: topic for name in asked if (topic := self._kafka.topic(name))}
        limits = {name: topic.max_message_bytes for name, topic in there.items()}
        return (limits, {name: len(topic.logs) for name, topic in there.items()}) if asked else None

    def ask_ends(self, partitions: Iterable[PartitionId]) -> None:
        self._ends = list(partitions)

    def ends(self) -> dict[PartitionId, int] | None:
        asked, self._ends = self._ends, []
        return {at: self._kafka.log(at).high for at in asked} or None

    def ask_partitions(self, topics: Iterable[str]) -> None:
        self._asked = list(topics)

    def partitions(self) -> dict[str, int] | None:
        """Returns the partition counts; {} while the broker is away.

        Returns None if `ask_partitions` was not called since the last answer.
        """
        asked, self._asked = self._asked, []
        if not asked or not self._kafka.up:
            return {} if asked else None
        there = {name: self._kafka.topic(name) for name in asked}
        return {name: len(topic.logs) for name, topic in there.items() if topic is not None}
