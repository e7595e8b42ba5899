"""What comes in the very call that brings an assignment: a broker cannot be made to time it."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from kworker.clients.kafka import At, KafkaConsumer
from kworker.core.message import Fields, RawMessage

AT = ("orders", 0)


class Trouble(Fields):
    """An event of a partition that is not a record."""

    def __init__(self, code: int) -> None:
        super().__init__((*AT, -1), 0, None, None, ())
        self._code = code

    def error(self) -> Any:
        return KafkaError(self._code)


class Client:
    """Returns one batch, and serves the callback in the same call."""

    def __init__(self, batch: list[RawMessage]) -> None:
        self.batch = batch
        self.on_assign: Callable[[object, list[TopicPartition]], None]
        self.sought: list[tuple[str, int, int]] = []

    def subscribe(self, _topics: list[str], on_assign: Any, **_others: Any) -> None:
        self.on_assign = on_assign

    def consume(self, _most: int, _timeout_s: float) -> list[RawMessage]:
        batch, self.batch = self.batch, []
        if batch:
            self.on_assign(self, [TopicPartition(*AT)])
        return batch

    def seek(self, to: TopicPartition) -> None:
        self.sought.append((to.topic, to.partition, to.offset))

    def assign(self, _partitions: list[TopicPartition]) -> None: ...
    def resume(self, _partitions: list[TopicPartition]) -> None: ...


class Over(KafkaConsumer):
    """The consumer over such a client; its own listener."""

    def __init__(self, client: Client) -> None:
        self._client = client
        super().__init__({}, self)
        self.subscribe(["orders"])

    def _made(self) -> Any:
        return self._client

    def assigned(self, partitions: list[At]) -> None:
        self.assign(dict.fromkeys(partitions, 41))

    def revoked(self, partitions: list[At]) -> None: ...
    def lost(self, partitions: list[At]) -> None: ...
    def committed(self, error: str | None) -> None: ...


def record(offset: int) -> Fields:
    return Fields((*AT, offset), 0, None, b"v", ())


def test_records_that_came_with_their_assignment_come_again() -> None:
    """They may be older than it, so they are gone back over, to its position."""
    client = Client([record(41), record(42)])
    assert Over(client).take(10, 0) == []
    assert client.sought == [(*AT, 41)]


def test_a_trouble_behind_them_is_told_and_passes_over_none_of_them() -> None:
    """P1: the ledger takes a gap in the offsets for done."""
    trouble = Trouble(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    client = Client([record(41), trouble])
    consumer = Over(client)
    assert consumer.take(10, 0) == []
    assert client.sought == [(*AT, 41)]
    consumer.resume([AT])
    assert consumer.take(10, 0) == [trouble]


def test_a_trouble_alone_is_told_and_nothing_is_sought() -> None:
    """A partition that stopped is not fetched again, and would not tell twice."""
    trouble = Trouble(KafkaError._AUTO_OFFSET_RESET)
    client = Client([trouble])
    consumer = Over(client)
    assert consumer.take(10, 0) == []
    assert client.sought == []
    consumer.resume([AT])
    assert consumer.take(10, 0) == [trouble]
