"""Kafka's transactional producer as the worker and the delay process use it."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from confluent_kafka import KafkaError, KafkaException, Producer

from kworker.clients.delivery import Queued, Refused
from kworker.clients.errors import Abortable, KafkaRequestError, QueueFull
from kworker.clients.producer import drop_all, hand_over, hand_over_plain
from kworker.clients.topic_partitions import offsets_of
from kworker.clients.transaction_errors import transaction_error, transaction_refusal
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.outcome import Output
from kworker.core.plain_results import PlainResults

_LOG = logging.getLogger("librdkafka")
_FULL_WAIT_S = 0.05
_AGAIN_S = 0.5
_SOCKET_TIMEOUT_MS = 60_000  # the library's own
_STATISTICS_MS = 250  # between two statistics
_STATISTICS_TIMEOUT_S = 2.0  # for them
_RETRY_BACKOFF_MS = 100  # the library's own: it sends nothing again before most of this is over
_UNDER_WAY = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._PREV_IN_PROGRESS,
        KafkaError._CONFLICT,
        KafkaError._IN_PROGRESS,
    }
)


class KafkaTransactor:
    """A transactional producer: commits records and a group's positions, all or nothing.

    Used by one thread at a time. `queue` and `begin` never block. `poll` and `flush` block for
    `wait_s` at most, and each other call for `timeout_s` and some seconds at most. After
    `Abortable`, call `abort`. After any other error of `send_positions`, `commit` or `abort`, the
    outcome of the transaction is unknown. Then close this producer, open another one under the same
    id, and read the committed positions.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        transactional_id: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises KafkaRequestError for properties that the library refuses."""
        self._timeout_s, self._clock = timeout_s, clock
        # The broker may still hold a request that was not answered for so long, and the end of
        # this transaction would then end a later one, too.
        self._late_s = int(properties.get("socket.timeout.ms", _SOCKET_TIMEOUT_MS)) / 1000
        self._resend_s = int(properties.get("retry.backoff.ms", _RETRY_BACKOFF_MS)) / 2000
        self._disturbance = ""  # an error of a connection since the last `begin`
        self._resends = 0  # requests that the library sent again, or that timed out, ever
        self._statistics_at = 0.0  # the time of the last statistics
        self._open = False
        self._fatal = False  # this client can never do anything again
        self._properties = {
            **properties,
            "transactional.id": transactional_id,
            "error_cb": self._on_error,
            "stats_cb": self._on_statistics,
            "statistics.interval.ms": _STATISTICS_MS,
        }
        self._make()

    def _make(self) -> None:
        try:
            self._producer = Producer(self._properties, logger=_LOG)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=False) from None
        self._produce: Any = self._producer.produce

    def open(self) -> None:
        """Fences the previous producer of this transactional id, and aborts its open transaction.

        Raises KafkaRequestError if Kafka refuses or does not answer. If that error is `retriable`,
        a later call of `open` may succeed.
        """
        if self._fatal:  # e.g. without the right to the id, which may have been granted since
            self._make()
            self._fatal = False
        self._bounded(lambda: self._producer.init_transactions(self._timeout_s))

    def begin(self) -> None:
        """Begins a transaction. Raises KafkaRequestError if the client cannot, e.g. when fenced."""
        self.poll()
        self._disturbance = ""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise transaction_error(error) from None
        self._open = True

    def produce(self, output: Output) -> None:
        """Adds a record to the transaction; waits while the producer's queue is full.

        Raises KafkaRequestError if the queue stays full for `timeout_s`, or if the client refuses
        the record. Raises Abortable if the transaction must now be aborted.
        """
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                hand_over(self._produce, output)
            except QueueFull:
                if self._clock() >= deadline:
                    raise KafkaRequestError(
                        f"the producer's queue was full for {self._timeout_s:g} s", retriable=True
                    ) from None
                self.poll(_FULL_WAIT_S)
            except KafkaException as error:
                raise transaction_error(error) from None
            else:
                return

    def queue(self, output: Output, refused: Refused) -> None:
        """Adds a record to the transaction, without waiting.

        `poll` calls `refused(error, message)` if the record is not written. Raises QueueFull while
        the producer's queue is full, and Broken if the transaction takes no more records. Raises
        KafkaRequestError if the client itself refuses the record.
        """
        try:
            hand_over(self._produce, output, refused)
        except KafkaException as error:
            raise transaction_refusal(error) from None

    def queue_plain(self, results: PlainResults, refused: Sequence[Refused]) -> Queued:
        """Adds results to the transaction, as far as it takes them, without waiting.

        For a result that is not written, `poll` calls the function of its record in `refused`.
        """
        number, error = hand_over_plain(self._produce, results, refused)
        if isinstance(error, KafkaException):
            return Queued(number, transaction_refusal(error))
        return Queued(number, error)

    def poll(self, wait_s: float = 0.0) -> None:
        """Calls the callbacks for reports and errors that have come, or come within `wait_s`."""
        self._serve(self._producer.poll, wait_s)

    def flush(self, wait_s: float) -> None:
        """Sends at once what the client still holds back for `linger.ms`.

        Waits for the reports, up to `wait_s`, and calls the callbacks for them as `poll` does.
        """
        self._serve(self._producer.flush, wait_s)

    def _serve(self, call: Callable[[float], object], wait_s: float) -> None:
        try:
            call(wait_s)
        except KafkaException as error:
            # It is fenced, as the next call will report, too.
            self._disturbance = str(error.args[0])

    def problem(self) -> str | None:
        """Returns the reason why the transaction takes no more records; None if it still does."""
        try:
            # It cannot begin twice: the library's error says which state it is in.
            self._producer.begin_transaction()
        except KafkaException as error:
            cause = error.args[0]
            return str(cause) if cause.txn_requires_abort() or cause.fatal() else None
        raise AssertionError("problem() was called without an open transaction")

    @property
    def unfinished(self) -> int:
        """The number of records without a delivery report."""
        return len(self._producer)

    def send_positions(
        self, positions: Mapping[PartitionId, Committed], group_metadata: Any
    ) -> None:
        """Adds a group's positions to the transaction.

        Raises Abortable if the transaction must now be aborted. Raises KafkaRequestError if Kafka
        refuses for another reason, or does not answer.
        """
        offsets = offsets_of(positions)
        send = self._producer.send_offsets_to_transaction
        self._bounded(lambda: send(offsets, group_metadata, self._timeout_s))

    def commit(self) -> None:
        """Commits the transaction.

        Raises KafkaRequestError if Kafka refuses, does not answer, or may have got the request
        twice. After such an error it is unknown whether the transaction was committed.
        """
        self._end("commit", self._producer.commit_transaction)

    def abort(self) -> None:
        """Aborts the transaction. Raises KafkaRequestError if its success is not certain."""
        self._end("abort", self._producer.abort_transaction)

    def close(self) -> None:
        """Aborts an open transaction in the background; another producer may `open` at once.

        First reports the queued records as failed, since another producer may send them again.
        """
        if self._open:
            self._open = False
            with suppress(KafkaException):
                drop_all(self._producer, self.poll)
            self.poll()
            abort = self._producer.abort_transaction
            threading.Thread(
                target=_give_up, args=(abort, self._timeout_s), name="close", daemon=True
            ).start()

    def _end(self, operation: str, call: Callable[[float], None]) -> None:
        began = self._clock()
        try:
            self._bounded(lambda: call(self._timeout_s))
        except Abortable as error:
            raise KafkaRequestError(str(error), retriable=True) from None
        self._open = False
        self.poll()  # serves the callback that may know of a disconnect
        if (took_s := self._clock() - began) >= self._late_s:
            text = f"the {operation} took {took_s:.0f} s, so its request may have been sent twice"
            raise KafkaRequestError(text, retriable=True)
        if not self._disturbance and took_s >= self._resend_s:
            self._check_for_resends()
        if self._disturbance:
            text = f"during the {operation} a request may have been sent twice: {self._disturbance}"
            raise KafkaRequestError(text, retriable=True)

    def _check_for_resends(self) -> None:
        """Waits for librdkafka's statistics, which show if it may have sent a request again.

        If so, or if no statistics come, `_disturbance` has the reason afterwards; else it is "".
        """
        now = self._clock()
        while self._statistics_at <= now:
            self.poll(_FULL_WAIT_S)
            if self._clock() - now > _STATISTICS_TIMEOUT_S:
                self._disturbance = "no statistics came to rule that out"
                return

    def _on_statistics(self, text: str) -> None:
        statistics = orjson.loads(text)
        resends = sum(b["txretries"] + b["req_timeouts"] for b in statistics["brokers"].values())
        if resends > self._resends:
            self._resends, self._disturbance = resends, "a request was sent again"
        self._statistics_at = statistics["ts"] / 1e6

    def _bounded(self, call: Callable[[], None]) -> None:
        """Runs a call that may hang while Kafka has no coordinator for the transaction.

        Raises KafkaRequestError if the call fails, or has not ended a second after `timeout_s`.
        """
        failures: list[KafkaException] = []

        def run() -> None:
            try:
                call()
            except KafkaException as error:
                failures.append(error)

        thread = threading.Thread(target=run, name="transaction", daemon=True)
        thread.start()
        thread.join(self._timeout_s + 1.0)
        if thread.is_alive():
            text = f"Kafka has sent no answer for {self._timeout_s:g} s"
            raise KafkaRequestError(text, retriable=True)
        if failures:
            self._fatal = failures[0].args[0].fatal()
            raise transaction_error(failures[0])

    def _on_error(self, error: KafkaError) -> None:
        self._disturbance = error.str()


def _give_up(abort: Callable[[float], None], timeout_s: float) -> None:
    """Aborts the transaction; repeats this until the abort has succeeded or failed for good.

    Keeps the producer alive until the abort returns, since the library crashes if the producer is
    freed earlier.
    """
    while True:
        try:
            abort(timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in _UNDER_WAY:
                return
            time.sleep(_AGAIN_S)
        else:
            return
