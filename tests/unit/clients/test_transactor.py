"""What a broker cannot be made to time: an end of a transaction that is late, or disturbed."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kworker.clients import transactions
from kworker.clients.errors import Abortable, KafkaRequestError
from kworker.clients.transactions import KafkaTransactor
from kworker.core.offset_map import Committed


class Client:
    """A producer of the library, as slow or as disturbed as the test wants it."""

    def __len__(self) -> int:
        return 0

    def __init__(self) -> None:
        self.now = 1_000.0
        self.took_s = 0.0
        self.hangs: threading.Event | None = None
        self.on_poll: Callable[[], None] = lambda: None
        self.aborts: list[Exception] = []  # raised by the next calls
        self.aborted = 0
        self.fails: Exception | None = None

    def begin_transaction(self) -> None: ...
    def purge(self) -> None: ...

    def poll(self, timeout_s: float) -> None:
        self.now += timeout_s
        self.on_poll()

    def send_offsets_to_transaction(self, *_arguments: object) -> None:
        if self.fails is not None:
            raise self.fails

    def commit_transaction(self, _timeout_s: float) -> None:
        if self.fails is not None:
            raise self.fails
        if self.hangs is not None:
            self.hangs.wait()
        self.now += self.took_s

    def abort_transaction(self, _timeout_s: float) -> None:
        self.aborted += 1
        if self.aborts:
            raise self.aborts.pop(0)


class Over(KafkaTransactor):
    """The transactor over such a client."""

    def __init__(self, client: Any, timeout_s: float = 5.0) -> None:
        super().__init__(
            {"bootstrap.servers": "127.0.0.1:9", "socket.timeout.ms": 400},
            "id",
            timeout_s,
            clock=lambda: client.now,
        )
        self._producer = client


def test_a_commit_whose_answer_was_late_is_in_doubt() -> None:
    """Its first request may still be under way, and would end a later transaction, too."""
    client = Client()
    transactor = Over(client)
    transactor.begin()
    transactor.commit()
    transactor.begin()
    client.took_s = 0.41
    with pytest.raises(KafkaRequestError, match="took"):
        transactor.commit()


def test_a_commit_during_which_a_connection_broke_is_in_doubt() -> None:
    """The request was sent again, and its first one may have arrived."""
    client = Client()
    transactor = Over(client)
    transactor.begin()
    client.on_poll = lambda: transactor._on_error(KafkaError(KafkaError._TRANSPORT))
    with pytest.raises(KafkaRequestError, match="during the commit"):
        transactor.commit()


def test_a_commit_after_an_earlier_disconnect_is_not_in_doubt() -> None:
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
        with pytest.raises(KafkaRequestError, match="no answer"):
            transactor.commit()
    finally:
        client.hangs.set()


def test_an_open_transaction_is_aborted_before_close() -> None:
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


def statistics(ts_s: float, **counts: int) -> str:
    """As much of the library's as is read."""
    broker = {"txretries": 0, "req_timeouts": 0, **counts}
    return json.dumps({"ts": int(ts_s * 1e6), "brokers": {"one:9092/1": broker, "two": broker}})


class Telling(Client):
    """A client whose commits are slow enough for a second request, and that tells what it did."""

    def __init__(self, **counts: int) -> None:
        super().__init__()
        self.took_s = 0.21
        self.counts = counts
        self.tells: Callable[[str], None] = lambda _: None
        self.told = 0

    def poll(self, timeout_s: float) -> None:
        self.now += timeout_s
        if timeout_s:
            self.told += 1
            self.tells(statistics(self.now, **self.counts))


@pytest.mark.parametrize("moved", ["txretries", "req_timeouts"])
def test_a_commit_sent_twice_is_in_doubt_without_a_disconnect(moved: str) -> None:
    """Not every broken one is told of: the library keeps quiet about what it said before."""
    client = Telling(**{moved: 1})
    transactor = Over(client)
    client.tells = transactor._on_statistics
    transactor.begin()
    with pytest.raises(KafkaRequestError, match="sent again"):
        transactor.commit()


def test_a_commit_that_was_only_slow_is_not_in_doubt() -> None:
    """On a machine with much to do each would be, and another producer is not for nothing."""
    client = Telling()
    transactor = Over(client)
    client.tells = transactor._on_statistics
    transactor.begin()
    transactor.commit()
    assert client.told == 1


def test_retries_before_a_transaction_do_not_count() -> None:
    client = Telling(txretries=1)
    transactor = Over(client)
    client.tells = transactor._on_statistics
    transactor._on_statistics(statistics(1.0, txretries=1))
    transactor.begin()
    transactor.commit()


def test_without_statistics_a_slow_commit_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows, so nobody may be sure."""
    monkeypatch.setattr(transactions, "_STATISTICS_TIMEOUT_S", 0.0)
    client = Client()
    client.took_s = 0.21
    transactor = Over(client)
    transactor.begin()
    with pytest.raises(KafkaRequestError, match="no statistics"):
        transactor.commit()


def test_an_abortable_error_at_commit_is_in_doubt() -> None:
    """The end may be under way: only what came before it may be taken back."""
    client = Client()
    error = KafkaError(KafkaError._TIMED_OUT, "late", False, False, True)
    client.fails = KafkaException(error)
    transactor = Over(client)
    transactor.begin()
    with pytest.raises(KafkaRequestError) as refused:
        transactor.commit()
    assert not isinstance(refused.value, Abortable)


def test_refused_positions_leave_the_producer_usable() -> None:
    """A rebalance is no reason for another one."""
    client = Client()
    error = KafkaError(KafkaError.ILLEGAL_GENERATION, "over", False, False, True)
    client.fails = KafkaException(error)
    transactor = Over(client)
    transactor.begin()
    with pytest.raises(Abortable):
        transactor.send_positions({("orders", 0): Committed(1)}, object())
