"""Delivery reports: why a record was not written, and whose fault that is."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from kworker.clients.errors import KafkaRequestError, Oversized


class Fault(IntEnum):
    """Whose fault it is that a record was not written; of several reports, the highest counts."""

    NOBODY = 0  # it was given up
    NEIGHBOUR = 1  # another one of its batch
    TOPIC = 2  # the same may work later
    RECORD = 3  # its own, or that of one with the same report: the same for ever


class DeliveryRefusal(NamedTuple):
    """Why Kafka did not take a record; `sized`: it, or its batch, is too large."""

    fault: Fault
    topic: str
    text: str
    sized: bool = False


# Of a batch with one invalid record, every record is reported as invalid; of one with several,
# only those. A wrong clock is told as such only of a batch of one record.
_SIZES = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_FAULTS = {
    KafkaError._PURGE_QUEUE: Fault.NOBODY,
    KafkaError._PURGE_INFLIGHT: Fault.NOBODY,
    KafkaError._INVALID_DIFFERENT_RECORD: Fault.NEIGHBOUR,
    KafkaError.INVALID_RECORD: Fault.RECORD,
    **dict.fromkeys(_SIZES, Fault.RECORD),
}


def refusal_of(reports: Iterable[tuple[Any, Any]]) -> DeliveryRefusal:
    """What delivery reports, errors and records, say of the outputs of one record."""
    return max(
        DeliveryRefusal(
            _FAULTS.get(error.code(), Fault.TOPIC),
            message.topic(),
            error.str(),
            error.code() in _SIZES,
        )
        for error, message in reports
    )


def refused_at_once(error: KafkaError) -> KafkaRequestError:
    """What a producer raises that does not take a record."""
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return Oversized(error.str())
    return KafkaRequestError(str(error), retriable=True)
