"""The records that a handler's lines name."""

import logging
import logging.handlers
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from kworker.log.running import TASK, fields, this_thread, trace_id_of
from kworker.message import Message
from tests.unit.log.events import WrittenLog

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(this_thread(), "running", None)
    token = TASK.set(None)
    yield
    TASK.reset(token)


def test_a_line_names_record_attempt_and_trace(written: WrittenLog) -> None:
    headers = (("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01".encode()),)
    TASK.set(Message("orders", 4, 7, attempt=2, headers=headers))
    logging.getLogger("handlers").info("order")
    [event] = written.events()
    assert (event["record"], event["attempt"], event["trace_id"]) == ("orders:4:7", 2, TRACE)


def test_a_line_of_a_batch_names_its_first_and_count() -> None:
    TASK.set([Message("orders", 4, 7), Message("orders", 5, 9)])
    assert fields() == {"record": "orders:4:7", "batch": 2}


def test_between_calls_no_record_is_named() -> None:
    assert fields() == {}


def test_a_threads_call_is_its_own() -> None:
    """Handlers without `async` run in threads, side by side."""
    this_thread().running = Message("orders", 4, 7)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(fields).result() == {}
    assert fields() == {"record": "orders:4:7", "attempt": 1}


@pytest.mark.parametrize(
    "value",
    [None, b"", b"00", b"\xff-\xff-\xff-\xff", b"00-XYZ-1-01", b"00-" + b"0" * 32 + b"-1-01"],
)
def test_a_header_without_a_trace_is_ignored(value: bytes | None) -> None:
    assert trace_id_of((("traceparent", value),)) == ""


def test_a_line_that_is_passed_on_by_a_queue_keeps_its_record(written: WrittenLog) -> None:
    """Then another thread writes it, in which no handler runs."""
    waiting: SimpleQueue[logging.LogRecord] = SimpleQueue()
    logger = logging.getLogger("queued")
    logger.propagate = False
    logger.addHandler(logging.handlers.QueueHandler(waiting))
    TASK.set(Message("orders", 4, 7))
    logger.warning("order")
    TASK.set(None)
    logging.getLogger().handle(waiting.get())
    assert [event["record"] for event in written.events()] == ["orders:4:7"]


def test_fields_of_the_line_itself_stand(written: WrittenLog) -> None:
    """The user's code has said what they are."""
    TASK.set(Message("orders", 4, 7))
    logging.getLogger("handlers").info("order", extra={"record": "mine"})
    assert [event["record"] for event in written.events()] == ["mine"]
