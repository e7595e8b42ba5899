"""Kafka's transactional producer as the worker and the delay process use it."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import orjson
from confluent_kafka import KafkaError, KafkaException, Producer

from kworker.clients.delivery import refused_at_once
from kworker.clients.errors import KafkaRequestError, QueueFull
from kworker.clients.producer import hand_over
from kworker.clients.topic_partitions import offsets_of
from kworker.core.message import PartitionId
from kworker.core.offset_map import Committed
from kworker.core.outcome import Output

_LOG = logging.getLogger("librdkafka")
_FULL_WAIT_S = 0.05
_AGAIN_S = 0.5
_SOCKET_TIMEOUT_MS = 60_000  # the library's own
_TELL_MS = 250  # between two statistics
_PATIENCE_S = 2.0  # for them
_RETRY_BACKOFF_MS = 100  # the library's own: it sends nothing again before most of this is over
_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)
# What the library says instead of what is wrong: the transaction takes nothing more.
_OVER = frozenset({KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED})
_UNDER_WAY = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._PREV_IN_PROGRESS,
        KafkaError._CONFLICT,
        KafkaError._IN_PROGRESS,
    }
)


class Abortable(KafkaRequestError):
    """Only this transaction is lost, and the producer is well."""


class Broken(Exception):
    """The transaction takes no more; `abort` tells why, or mends it."""


class KafkaTransactor:
    """One transactional producer: records and a group's positions, all or nothing.

    Used by one thread at a time; each call blocks for `timeout_s` at most, and `queue`,
    `poll` and `begin` not at all. What a call raised, or a commit or abort whose request may
    have been sent twice, leaves in doubt: the producer must be closed and another one opened
    under the same id, and the committed positions read back. Only what is `Abortable` may be
    aborted instead.
    """

    def __init__(
        self, properties: Mapping[str, Any], transactional_id: str, timeout_s: float
    ) -> None:
        """Raises Refused for properties that the library does not take."""
        self._timeout_s = timeout_s
        # The broker may still hold a request that was not answered for so long, and the end of
        # this transaction would then end a later one, too.
        self._late_s = int(properties.get("socket.timeout.ms", _SOCKET_TIMEOUT_MS)) / 1000
        self._again_s = int(properties.get("retry.backoff.ms", _RETRY_BACKOFF_MS)) / 2000
        self._disturbed = ""  # what befell a connection since the last `begin`
        self._repeats = 0  # requests that the library sent again or waited for in vain, ever
        self._told_at = 0.0  # when that was known
        self._open = False
        self._fatal = False  # this client can do no more, whatever changes
        self._properties = {
            **properties,
            "transactional.id": transactional_id,
            "error_cb": self._on_error,
            "stats_cb": self._on_statistics,
            "statistics.interval.ms": _TELL_MS,
        }
        self._make()

    def _make(self) -> None:
        try:
            self._producer = Producer(self._properties, logger=_LOG)
        except KafkaException as error:
            raise KafkaRequestError(str(error.args[0]), retriable=False) from None
        self._produce: Any = self._producer.produce

    def open(self) -> None:
        """Fences whoever had this id, and aborts what that one left open.

        Raises Refused; what is retriable may succeed when called again.
        """
        if self._fatal:  # as without a right to the id, which may have been granted since
            self._make()
            self._fatal = False
        self._bounded(lambda: self._producer.init_transactions(self._timeout_s))

    def begin(self) -> None:
        """Raises Refused."""
        self.poll()
        self._disturbed = ""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise _refused(error) from None
        self._open = True

    def produce(self, output: Output) -> None:
        """Adds a record; waits while the queue is full. Raises Refused."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                hand_over(self._produce, output)
            except QueueFull:
                if time.monotonic() >= deadline:
                    raise KafkaRequestError(
                        "the producer's queue stays full", retriable=True
                    ) from None
                self.poll(_FULL_WAIT_S)
            except KafkaException as error:
                raise _refused(error) from None
            else:
                return

    def queue(self, output: Output, refused: Callable[[object, object], None]) -> None:
        """Adds a record, without waiting. `refused(error, message)` hears if it fails.

        Raises QueueFull; Broken; Refused when the client knows already that it cannot.
        """
        try:
            hand_over(self._produce, output, refused)
        except KafkaException as error:
            if error.args[0].code() in _OVER:
                raise Broken(str(error.args[0])) from None
            raise refused_at_once(error.args[0]) from None

    def poll(self, wait_s: float = 0.0) -> None:
        """Serves callbacks."""
        try:
            self._producer.poll(wait_s)
        except KafkaException as error:
            self._disturbed = str(error.args[0])  # it is fenced, and whatever is next says so, too

    def trouble(self) -> str | None:
        """Why the open transaction takes no more; None while it does."""
        try:
            # Which it is not the time for: what the library says tells the state it is in.
            self._producer.begin_transaction()
        except KafkaException as error:
            cause = error.args[0]
            return str(cause) if cause.txn_requires_abort() or cause.fatal() else None
        raise AssertionError("no transaction was open")

    @property
    def unfinished(self) -> int:
        """Records without a delivery report, in whatever queue."""
        return len(self._producer)

    def send_positions(
        self, positions: Mapping[PartitionId, Committed], group_metadata: Any
    ) -> None:
        """Adds positions of the group whose consumer gave its `group_metadata`. Raises Refused."""
        offsets = offsets_of(positions)
        send = self._producer.send_offsets_to_transaction
        self._bounded(lambda: send(offsets, group_metadata, self._timeout_s))

    def commit(self) -> None:
        """Makes all of it visible and durable. Raises Refused: then nobody knows."""
        self._end("commit", self._producer.commit_transaction)

    def abort(self) -> None:
        """As if the transaction had never been. Raises Refused."""
        self._end("abort", self._producer.abort_transaction)

    def close(self) -> None:
        """Gives up an open transaction, in the background; a successor may `open` at once.

        Whatever is still queued is reported now: later, it may be on its way by the successor.
        """
        if self._open:
            self._open = False
            with suppress(KafkaException):
                self._producer.purge()
            self.poll()
            abort = self._producer.abort_transaction
            threading.Thread(
                target=_give_up, args=(abort, self._timeout_s), name="close", daemon=True
            ).start()

    def _end(self, what: str, call: Callable[[float], None]) -> None:
        began = time.monotonic()
        try:
            self._bounded(lambda: call(self._timeout_s))
        except Abortable as error:
            raise KafkaRequestError(str(error), retriable=True) from None
        self._open = False
        self.poll()  # serves the callback that may know of a disconnect
        if (took_s := time.monotonic() - began) >= self._late_s:
            raise KafkaRequestError(f"the {what} took {took_s:.0f} s", retriable=True)
        if not self._disturbed and took_s >= self._again_s:
            self._look_for_repeats()
        if self._disturbed:
            raise KafkaRequestError(f"during the {what}: {self._disturbed}", retriable=True)

    def _look_for_repeats(self) -> None:
        """A request may have been sent again: not every lost connection is told of.

        Only the statistics know, and those that are made after this.
        """
        now = time.monotonic()
        while self._told_at <= now:
            self.poll(_FULL_WAIT_S)
            if time.monotonic() - now > _PATIENCE_S:
                self._disturbed = "no statistics"
                return

    def _on_statistics(self, text: str) -> None:
        told = orjson.loads(text)
        repeats = sum(b["txretries"] + b["req_timeouts"] for b in told["brokers"].values())
        if repeats > self._repeats:
            self._repeats, self._disturbed = repeats, "a request was sent again"
        self._told_at = told["ts"] / 1e6

    def _bounded(self, call: Callable[[], None]) -> None:
        """The library keeps not all of its time-outs while the coordinator is away."""
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
            raise KafkaRequestError(f"no answer for {self._timeout_s:g} s", retriable=True)
        if failures:
            self._fatal = failures[0].args[0].fatal()
            raise _refused(failures[0])

    def _on_error(self, error: KafkaError) -> None:
        self._disturbed = error.str()


def _give_up(abort: Callable[[float], None], timeout_s: float) -> None:
    """Holds the producer until it is over: freed while it adds a partition, it would crash."""
    while True:
        try:
            abort(timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in _UNDER_WAY:
                return
            time.sleep(_AGAIN_S)
        else:
            return


def _refused(error: KafkaException) -> KafkaRequestError:
    cause = error.args[0]
    if cause.code() in _FENCED or not cause.txn_requires_abort():
        return KafkaRequestError(str(cause), retriable=cause.code() not in _FENCED)
    return Abortable(str(cause), retriable=True)
