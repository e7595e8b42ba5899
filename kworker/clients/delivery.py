"""Delivery reports of records that were not written: their causes."""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from kworker.clients.errors import Broken, KafkaRequestError, Oversized, QueueFull

Refused = Callable[[object, object], None]
"""Called with the error and the message of an output that was not written."""


class Fault(IntEnum):
    """The reason why a record was not written.

    If outputs of one run fail for several reasons, the one with the highest number is reported.
    """

    GIVEN_UP = 0  # the client gave the record up before Kafka answered
    OTHER_RECORD = 1  # another record of the same batch is invalid
    TOPIC = 2  # the same may work later
    RECORD = 3  # this record, or one with the same report: it will never be written


class DeliveryRefusal(NamedTuple):
    """Kafka's reason to refuse a record; `sized` is True if record or batch is too large."""

    fault: Fault
    topic: str
    text: str
    sized: bool = False


class Queued(NamedTuple):
    """The number of records that a producer has queued of several, and why it took no more.

    `stopped` is None if it has queued all. The first that it has not queued is the one refused.
    """

    number: int
    stopped: QueueFull | KafkaRequestError | Broken | None


# Of a batch with one invalid record, every record is reported as invalid; of one with several,
# only those. A wrong timestamp is reported as such only of a batch of one record.
_SIZES = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_FAULTS = {
    KafkaError._PURGE_QUEUE: Fault.GIVEN_UP,
    KafkaError._PURGE_INFLIGHT: Fault.GIVEN_UP,
    KafkaError._INVALID_DIFFERENT_RECORD: Fault.OTHER_RECORD,
    KafkaError.INVALID_RECORD: Fault.RECORD,
    **dict.fromkeys(_SIZES, Fault.RECORD),
}


def refusal_of(reports: Iterable[tuple[Any, Any]]) -> DeliveryRefusal:
    """Returns why outputs of one record were not written, according to their delivery reports.

    If the reports give several reasons, returns the one whose `fault` has the highest number.
    """
    return max(
        DeliveryRefusal(
            _FAULTS.get(error.code(), Fault.TOPIC),
            message.topic(),
            error.str(),
            error.code() in _SIZES,
        )
        for error, message in reports
    )


def unanswered(reports: Iterable[tuple[Any, Any]]) -> set[str]:
    """Returns the topics of those outputs that the client gave up before Kafka answered."""
    given_up = (m.topic() for e, m in reports if _FAULTS.get(e.code()) is Fault.GIVEN_UP)
    return set(given_up)


def refused_at_once(error: KafkaError) -> KafkaRequestError:
    """Converts the error that librdkafka's `produce` raises for a record that it refuses."""
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return Oversized(error.str())
    return KafkaRequestError(str(error), retriable=True)
