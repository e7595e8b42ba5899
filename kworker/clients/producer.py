"""Kafka's producer as the worker uses it; the transactional one is in `transactions`."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from kworker.clients.delivery import Queued, Refused, refused_at_once
from kworker.clients.errors import KafkaRequestError, QueueFull
from kworker.core.headers import SOURCE
from kworker.core.outcome import Output
from kworker.core.plain_results import PlainResults

_LOG = logging.getLogger("librdkafka")
_PURGED_S = 1.0
_POLL_S = 0.01


class KafkaProducer:
    """One idempotent producer. Used by one thread.

    `poll` calls the callbacks that were given to `produce`.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """Raises KafkaRequestError for properties that the library refuses."""
        self._fatal: str | None = None
        try:
            self._producer = Producer({**properties, "error_cb": self._on_error}, logger=_LOG)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=False) from None
        self._produce: Any = self._producer.produce

    @property
    def fatal(self) -> str | None:
        """The reason why this producer can never write again; None while it can."""
        return self._fatal

    def produce(self, output: Output, refused: Refused) -> None:
        """Queues a record. `poll` calls `refused(error, message)` if the record is not written.

        Raises QueueFull, or KafkaRequestError if the client itself refuses the record.
        """
        try:
            hand_over(self._produce, output, refused)
        except KafkaException as error:
            raise refused_at_once(error.args[0]) from None

    def produce_plain(self, results: PlainResults, refused: Sequence[Refused]) -> Queued:
        """Queues results, as far as the client takes them, without waiting.

        For a result that is not written, `poll` calls the function of its record in `refused`.
        """
        number, error = hand_over_plain(self._produce, results, refused)
        if isinstance(error, KafkaException):
            return Queued(number, refused_at_once(error.args[0]))
        return Queued(number, error)

    def poll(self) -> None:
        """Calls the callbacks of delivery reports that have come. Never waits."""
        self._producer.poll(0)

    @property
    def unfinished(self) -> int:
        """The number of records without a delivery report."""
        return len(self._producer)

    def purge(self) -> None:
        """Drops records that are queued or in flight, and reports them as failed.

        Waits for the reports, but not for more than a second.
        """
        drop_all(self._producer, self._producer.poll)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL or error.fatal():
            self._fatal = str(error)


def hand_over(produce: Any, output: Output, refused: Refused | None = None) -> None:
    """Passes an output to `produce`, a method of a producer.

    Raises QueueFull while the producer's queue is full. Raises KafkaException, the library's error,
    if the client refuses the output for another reason.
    """
    own = output.own
    try:
        # By position: keywords cost as much again as the call. The property `headers` costs, too.
        produce(
            output.topic,
            output.value,
            output.key,
            output.partition,
            refused,
            None,
            0,
            [(SOURCE, own)] if type(own) is bytes else own,
        )
    except BufferError:
        raise QueueFull from None


def hand_over_plain(
    produce: Any, results: PlainResults, refused: Sequence[Refused]
) -> tuple[int, QueueFull | KafkaException | None]:
    """Passes results to `produce`, a method of a producer, until it raises.

    Returns the number of records that were done before, and what was raised.
    """
    topic, nth = results.topic, 0
    own = results.headers or repeat((), len(results))
    columns = zip(results.values, results.keys, results.sources, own, refused, strict=True)
    try:
        for nth, (value, key, source, more, report) in enumerate(columns):  # noqa: B007 - told below
            if value is not None:
                headers = [(SOURCE, source), *more] if more else [(SOURCE, source)]
                produce(topic, value, key, -1, report, None, 0, headers)
    except BufferError:
        return nth, QueueFull()
    except KafkaException as error:
        return nth, error
    return len(results), None


def drop_all(producer: Producer, poll: Callable[[float], object]) -> None:
    """Drops the records that are queued or in flight; `poll(wait_s)` reports them as failed.

    Waits up to _PURGED_S for the reports: that of a record in flight comes a moment later. Raises
    KafkaException, the library's error.
    """
    producer.purge()
    deadline = time.monotonic() + _PURGED_S
    while len(producer) and time.monotonic() < deadline:
        poll(_POLL_S)
