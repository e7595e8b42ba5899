"""The meanings of the errors that the library's transactional producer raises."""

from confluent_kafka import KafkaError, KafkaException

from kworker.clients.delivery import refused_at_once
from kworker.clients.errors import Abortable, Broken, KafkaRequestError

_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)
# What the library says instead of what is wrong: the transaction takes nothing more.
_OVER = frozenset({KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED})


def transaction_refusal(error: KafkaException) -> Broken | KafkaRequestError:
    """Converts an error of `produce`."""
    cause = error.args[0]
    return Broken(str(cause)) if cause.code() in _OVER else refused_at_once(cause)


def transaction_error(error: KafkaException) -> KafkaRequestError:
    """Converts an error of any other call."""
    cause = error.args[0]
    if cause.code() in _FENCED or not cause.txn_requires_abort():
        return KafkaRequestError(str(cause), retriable=cause.code() not in _FENCED)
    return Abortable(str(cause), retriable=True)
