"""What a broker cannot be made to time: an end of a transaction that is late, or disturbed."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kworker.clients.kafka import Refused
from kworker.clients.transactions import KafkaTransactor


class Client:
    """A producer of the library, as slow or as disturbed as the test wants it."""

    def __init__(self) -> None:
        self.took_s = 0.0
        self.hangs: threading.Event | None = None
        self.on_poll: Callable[[], None] = lambda: None
        self.aborts: list[Exception] = []  # raised by the next calls
        self.aborted = 0

    def begin_transaction(self) -> None: ...

    def poll(self, _timeout_s: float) -> None:
        self.on_poll()

    def commit_transaction(self, _timeout_s: float) -> None:
        if self.hangs is not None:
            self.hangs.wait()
        time.sleep(self.took_s)

    def abort_transaction(self, _timeout_s: float) -> None:
        self.aborted += 1
        if self.aborts:
            raise self.aborts.pop(0)


class Over(KafkaTransactor):
    """The transactor over such a client."""

    def __init__(self, client: Any, timeout_s: float = 5.0) -> None:
        super().__init__(
            {"bootstrap.servers": "127.0.0.1:9", "socket.timeout.ms": 100}, "id", timeout_s
        )
        self._producer = client


def test_a_commit_whose_answer_was_late_is_in_doubt() -> None:
    """Its first request may still be under way, and would end a later transaction, too."""
    client = Client()
    transactor = Over(client)
    transactor.begin()
    transactor.commit()
    transactor.begin()
    client.took_s = 0.11
    with pytest.raises(Refused, match="took"):
        transactor.commit()


def test_a_commit_during_which_a_connection_broke_is_in_doubt() -> None:
    """The request was sent again, and its first one may have arrived."""
    client = Client()
    transactor = Over(client)
    transactor.begin()
    client.on_poll = lambda: transactor._on_error(KafkaError(KafkaError._TRANSPORT))
    with pytest.raises(Refused, match="during the commit"):
        transactor.commit()


def test_a_connection_that_broke_before_a_transaction_is_no_doubt() -> None:
    """Brokers close idle ones."""
    client = Client()
    transactor = Over(client)
    client.on_poll = lambda: transactor._on_error(KafkaError(KafkaError._TRANSPORT))
    transactor.begin()
    client.on_poll = lambda: None
    transactor.commit()


def test_a_call_that_the_library_does_not_end_is_given_up() -> None:
    """The thread that uses it has other things to see to."""
    client = Client()
    client.hangs = threading.Event()
    transactor = Over(client, timeout_s=0.1)
    transactor.begin()
    try:
        with pytest.raises(Refused, match="no answer"):
            transactor.commit()
    finally:
        client.hangs.set()


def test_an_open_transaction_is_aborted_before_its_producer_is_freed() -> None:
    """The library would crash the process, if a partition were being added just then."""
    client = Client()
    client.aborts = [KafkaException(KafkaError(KafkaError._CONFLICT))]
    transactor = Over(client, timeout_s=0.1)
    transactor.begin()
    transactor.close()
    for thread in threading.enumerate():
        if thread.name == "close":
            thread.join(5)
    assert client.aborted == 2
