"""An event of Kafka in memory, such as the end of a partition."""

from typing import Any

from confluent_kafka import KafkaError

from kworker.core.message import Fields, PartitionId


class Event(Fields):
    """An event that a consumer returns in place of a record."""

    __slots__ = ("_error",)

    def __init__(self, at: PartitionId, offset: int, error: KafkaError) -> None:
        super().__init__((*at, offset), -1, None, None, ())
        self._error = error

    def error(self) -> Any:
        return self._error
