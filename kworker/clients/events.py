"""Kinds of events that a consumer returns in place of records."""

from enum import Enum, auto

from confluent_kafka import KafkaError

from kworker.core.message import RawMessage


class ConsumerEvent(Enum):
    """The kind of an event that a consumer's `poll` returns in place of a record."""

    PARTITION_EOF = auto()  # the end of a partition, at the event's offset
    OUT_OF_RANGE = auto()  # the position is outside of what the partition holds, or there is none
    FENCED = auto()  # another process has taken this identity
    UNREADABLE = auto()  # topic or partition unknown, or not allowed
    TRANSIENT = auto()  # the client recovers by itself


_EVENTS = {
    KafkaError._PARTITION_EOF: ConsumerEvent.PARTITION_EOF,
    KafkaError._AUTO_OFFSET_RESET: ConsumerEvent.OUT_OF_RANGE,
    KafkaError.OFFSET_OUT_OF_RANGE: ConsumerEvent.OUT_OF_RANGE,
    KafkaError.FENCED_INSTANCE_ID: ConsumerEvent.FENCED,
    KafkaError._FENCED: ConsumerEvent.FENCED,
    KafkaError._FATAL: ConsumerEvent.FENCED,
    KafkaError.UNKNOWN_TOPIC_OR_PART: ConsumerEvent.UNREADABLE,
    KafkaError._UNKNOWN_TOPIC: ConsumerEvent.UNREADABLE,
    KafkaError._UNKNOWN_PARTITION: ConsumerEvent.UNREADABLE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ConsumerEvent.UNREADABLE,
}


def event_of(raw: RawMessage) -> ConsumerEvent:
    """Returns the kind of an event, which is a message whose `error()` is not None."""
    error = raw.error()
    if error.fatal():
        return ConsumerEvent.FENCED
    return _EVENTS.get(error.code(), ConsumerEvent.TRANSIENT)
