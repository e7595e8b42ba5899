"""What comes in the very call that brings an assignment: a broker cannot be made to time it."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from kworker.clients.consumer import KafkaConsumer
from kworker.core.message import Fields, PartitionId, RawMessage

AT = ("orders", 0)


class Trouble(Fields):
    """An event of a partition that is not a record."""

    def __init__(self, code: int) -> None:
        super().__init__((*AT, -1), 0, None, None, ())
        self._code = code

    def error(self) -> Any:
        return KafkaError(self._code)


class Client:
    """Returns one batch after the other, and serves callbacks in the same call as the first."""

    def __init__(self, *batches: list[RawMessage], given_up: bool = False) -> None:
        self.batches = list(batches)
        self.given_up = given_up  # and assigned again
        self.served = False
        self.on_assign: Callable[[object, list[TopicPartition]], None]
        self.on_revoke: Callable[[object, list[TopicPartition]], None]
        self.asked: list[int] = []
        self.sought: list[tuple[str, int, int]] = []

    def subscribe(self, _topics: list[str], on_assign: Any, on_revoke: Any, **_others: Any) -> None:
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def consume(self, most: int, _timeout_s: float) -> list[RawMessage]:
        self.asked.append(most)
        if not self.served:
            self.served = True
            if self.given_up:
                self.on_revoke(self, [TopicPartition(*AT)])
            self.on_assign(self, [TopicPartition(*AT)])
        return self.batches.pop(0) if self.batches else []

    def seek(self, to: TopicPartition) -> None:
        self.sought.append((to.topic, to.partition, to.offset))

    def assign(self, _partitions: list[TopicPartition]) -> None: ...
    def unassign(self) -> None: ...
    def pause(self, _partitions: list[TopicPartition]) -> None: ...
    def resume(self, _partitions: list[TopicPartition]) -> None: ...


class Over(KafkaConsumer):
    """The consumer over such a client; its own listener."""

    def __init__(self, client: Client) -> None:
        self._client = client
        super().__init__({}, self)
        self.subscribe(["orders"])

    def _make_client(self) -> Any:
        return self._client

    def assigned(self, partitions: list[PartitionId]) -> None:
        self.assign(dict.fromkeys(partitions, 41))

    def revoked(self, partitions: list[PartitionId]) -> None:
        self.unassign(partitions)

    def lost(self, partitions: list[PartitionId]) -> None: ...
    def committed(self, error: str | None) -> None: ...


def record(offset: int) -> Fields:
    return Fields((*AT, offset), 0, None, b"v", ())


def offsets(messages: list[RawMessage]) -> list[int]:
    return [message.offset() for message in messages]


def test_records_polled_with_their_assignment_wait_to_be_resumed() -> None:
    """And go before what came later. To seek them took the client up to three seconds."""
    client = Client([record(41), record(42)], [record(43)])
    consumer = Over(client)
    assert consumer.poll(10, 0) == []
    consumer.resume([AT])
    assert offsets(consumer.poll(10, 0)) == [41, 42, 43]
    assert consumer.poll(10, 0) == []
    assert client.sought == []


def test_poll_returns_no_more_records_than_asked_for() -> None:
    client = Client([record(41), record(42), record(43)], [record(44)])
    consumer = Over(client)
    consumer.poll(3, 0)
    consumer.resume([AT])
    assert [offsets(consumer.poll(2, 0)) for _ in range(3)] == [[41, 42], [43, 44], []]
    assert client.asked == [3, 1, 2]


def test_held_records_wait_while_their_partition_is_paused() -> None:
    """The client fetches from behind them when it is resumed."""
    consumer = Over(Client([record(41)], [], [record(42)]))
    consumer.poll(10, 0)
    assert consumer.poll(10, 0) == []  # not resumed in between: paused in earnest
    consumer.resume([AT])
    assert offsets(consumer.poll(10, 0)) == [41, 42]


def test_a_revoked_partition_keeps_no_records() -> None:
    """Another member does them; and if it comes back, they are fetched again."""
    consumer = Over(Client([record(41)]))
    consumer.poll(10, 0)
    consumer.unassign([AT])
    consumer.assign({AT: 41})
    consumer.resume([AT])
    assert consumer.poll(10, 0) == []


def test_a_kept_consumer_event_is_dropped_with_its_assignment() -> None:
    """It would stop a partition for a person to look at, which has nothing."""
    client = Client([Trouble(KafkaError._AUTO_OFFSET_RESET)])
    consumer = Over(client)
    consumer.poll(10, 0)
    consumer.resume([AT])
    client.served, client.given_up = False, True
    assert consumer.poll(10, 0) == []


def test_records_from_before_a_reassignment_are_sought_back() -> None:
    """They may be of before it was given up; from its position on they come again."""
    client = Client([record(41), record(42)], given_up=True)
    consumer = Over(client)
    assert consumer.poll(10, 0) == []
    consumer.resume([AT])
    assert consumer.poll(10, 0) == []
    assert client.sought == [(*AT, 41)]


def test_a_consumer_event_behind_held_records_skips_none() -> None:
    """The ledger takes a gap in the offsets for done."""
    trouble = Trouble(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    client = Client([record(41), trouble], given_up=True)
    consumer = Over(client)
    assert consumer.poll(10, 0) == []
    assert client.sought == [(*AT, 41)]
    consumer.resume([AT])
    assert consumer.poll(10, 0) == [trouble]


@pytest.mark.parametrize("given_up", [False, True])
def test_a_consumer_event_alone_is_told_without_a_seek(given_up: bool) -> None:
    """A partition that stopped is not fetched again, and would not tell twice."""
    trouble = Trouble(KafkaError._AUTO_OFFSET_RESET)
    client = Client([trouble], given_up=given_up)
    consumer = Over(client)
    assert consumer.poll(10, 0) == []
    assert client.sought == []
    consumer.resume([AT])
    assert consumer.poll(10, 0) == [trouble]
