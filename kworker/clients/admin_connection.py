"""The connection of the administrator's client: its errors, and its waits for elections."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kworker.clients.admin_handle import AdminHandle
from kworker.clients.connection_failures import AUDIBLE, ConnectionFailures
from kworker.errors import KworkerError, Unreachable

T = TypeVar("T")
RETRY_S = 0.2
# The errors raised say all that people need; librdkafka's own log lines go nowhere.
SILENT = logging.getLogger("kworker.librdkafka.admin")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False
_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_NO_LEADER = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
_NO_COORDINATOR = frozenset(
    {
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)


class AdminRequestError(KworkerError):
    """A broker refused an administrator's request."""


class AdminConnection:
    """Sends requests with an AdminClient. Each request blocks for about `timeout_s` at most.

    Raises `Unreachable` if no broker answers, or if an election lasts too long; `ClientRejected` if
    brokers turn the client away. Raises `AdminRequestError` for any other failure.
    """

    def __init__(self, properties: Mapping[str, Any], *, timeout_s: float = 5.0) -> None:
        self._properties = properties
        self._brokers = str(properties.get("bootstrap.servers", ""))
        self._timeout_s = timeout_s
        self._failures = ConnectionFailures()
        try:
            self._handle = AdminHandle({**properties, **AUDIBLE}, self._failures.logger)
        except KafkaException as error:
            raise AdminRequestError(reason_of(error)) from None

    def _client(self) -> AdminClient:
        """Returns the client for the next request."""
        return self._handle.client()

    def _call(self, call: Callable[[], T]) -> T:
        self._begin()
        try:
            return self._answered(call())
        except KafkaException as error:
            raise self._converted(error) from None

    def _call_leader(self, call: Callable[[], T]) -> T:
        return self._retry_while(call, _NO_LEADER, "leader for a partition")

    def _call_coordinator(self, call: Callable[[], T]) -> T:
        return self._retry_while(call, _NO_COORDINATOR, "coordinator for the group")

    def _retry_while(self, call: Callable[[], T], codes: Collection[int], missing: str) -> T:
        """Repeats a request while it fails with one of `codes`, as it does during an election.

        Raises `Unreachable` after `timeout_s`; its text names the `missing` leader or coordinator.
        """
        self._begin()
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._answered(call())
            except KafkaException as error:
                if code_of(error) not in codes:
                    raise self._converted(error) from None
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"Kafka at {self._brokers} answers, but there is no {missing} after"
                        f" {self._timeout_s:g} s ({reason_of(error)})"
                    ) from None
            time.sleep(RETRY_S)

    def _result(self, future: "Future[Any]") -> Any:
        return self._call(lambda: self._answer(future))

    def _answer(self, future: "Future[Any]") -> Any:
        """Returns the future's result, or raises the future's KafkaException.

        Raises `Unreachable` if the future has neither a result nor an exception in time.
        """
        # The client resolves it within the request's own time; the margin is for its thread.
        if not wait([future], self._timeout_s + 5).done:
            raise self._unreachable(f"no answer to a request within {self._timeout_s:g} s")
        return future.result()

    def _converted(self, error: KafkaException) -> KworkerError:
        reason = reason_of(error)
        if code_of(error) in _UNREACHABLE:
            return self._unreachable(reason)
        return AdminRequestError(reason)

    def _begin(self) -> None:
        self._handle.read_log()
        self._failures.begin()

    def _answered(self, answer: T) -> T:
        self._handle.read_log()
        self._failures.answered()
        return answer

    def _unreachable(self, reason: str) -> Unreachable:
        self._handle.read_log()
        self._handle.stale = True
        return self._failures.error(self._brokers, self._timeout_s, reason)


def code_of(error: KafkaException) -> int:
    return int(cast(KafkaError, error.args[0]).code())


def reason_of(error: KafkaException) -> str:
    """Returns the error's text, in Kafka's own words."""
    return str(cast(KafkaError, error.args[0]).str())
