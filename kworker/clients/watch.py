"""What the brokers know and a process shows or needs: ends of partitions, facts of topics.

Asked without waiting: the admin client answers in the background.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from kworker.clients.kafka import At

_LOG = logging.getLogger("librdkafka")
_TIMEOUT_S = 5.0
# After a broker's restart the client would ask with a leader epoch that is over, and be refused,
# for as long as it believes what it once heard.
_FRESH = {"metadata.max.age.ms": 3000, "topic.metadata.refresh.interval.ms": 1000}
# Kafka's limit is on the batch, which the producer's is on too.
_LIMIT = "max.message.bytes"


class KafkaWatch:
    """One question of each kind at a time: what is asked before its answer is not asked.

    Used by one thread.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._admin = AdminClient({**_FRESH, **properties}, logger=_LOG)
        self._ends: dict[TopicPartition, Any] = {}
        self._limits: dict[ConfigResource, Any] = {}
        self._described: dict[str, Any] = {}
        self._partitions: dict[str, Any] = {}

    def ask_ends(self, partitions: Iterable[At]) -> None:
        """Asks how far each partition can be read: to an open transaction, or its last record."""
        asked = {TopicPartition(*at): OffsetSpec.latest() for at in partitions}
        if asked and not self._ends:
            self._ends = self._admin.list_offsets(
                asked,
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=_TIMEOUT_S,
            )

    def ends(self) -> dict[At, int] | None:
        """The answer, once, when all of it is there; what failed is left out."""
        if not self._ends or not all(future.done() for future in self._ends.values()):
            return None
        asked, self._ends = self._ends, {}
        return {
            (tp.topic, tp.partition): answer.offset
            for tp, future in asked.items()
            if (answer := _result(future)) is not None
        }

    def ask_facts(self, topics: Iterable[str]) -> None:
        """Asks for the largest batch that each topic takes, and how many partitions it has."""
        names = list(topics)
        if self._limits or self._described:
            return
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in names]
        self._limits = self._admin.describe_configs(resources, request_timeout=_TIMEOUT_S)
        self._described = self._admin.describe_topics(
            TopicCollection(names), request_timeout=_TIMEOUT_S
        )

    def facts(self) -> tuple[dict[str, int], dict[str, int]] | None:
        """The answer, once: bytes and partitions by topic; what failed is left out."""
        futures = [*self._limits.values(), *self._described.values()]
        if not futures or not all(future.done() for future in futures):
            return None
        limits, self._limits = self._limits, {}
        described, self._described = self._described, {}
        return (
            {
                resource.name: int(answer[_LIMIT].value)
                for resource, future in limits.items()
                if (answer := _result(future)) is not None
            },
            {
                name: len(answer.partitions)
                for name, future in described.items()
                if (answer := _result(future)) is not None
            },
        )

    def ask_partitions(self, topics: Iterable[str]) -> None:
        """Asks how many partitions each topic has."""
        asked = TopicCollection(list(topics))
        if not self._partitions:
            self._partitions = self._admin.describe_topics(asked, request_timeout=_TIMEOUT_S)

    def partitions(self) -> dict[str, int] | None:
        """The answer, once; without the topics that do not exist, or nobody told of."""
        if not self._partitions or not all(future.done() for future in self._partitions.values()):
            return None
        asked, self._partitions = self._partitions, {}
        return {
            topic: len(answer.partitions)
            for topic, future in asked.items()
            if (answer := _result(future)) is not None
        }


def _result(future: Any) -> Any:
    try:
        return future.result()
    except KafkaException:
        return None
