"""One run of a handler: what it is given, and what becomes of a dead letter's telling."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from kworker.core.headers import SOURCE, Envelope
from kworker.core.outcome import DeadLettered, OnDeadCall, Output
from kworker.core.record import PLACE_BITS, Record
from kworker.log.running import ThreadCall, fields, this_thread
from kworker.message import Message
from kworker.worker.handlers.invocation import make_async_invoke, make_invoke
from kworker.worker.handlers.loaded_handlers import Handler, Handlers
from kworker.worker.handlers.results import ResultEncoder
from kworker.worker.handlers.thread_pool import place_of
from kworker.worker.topic_limits import TopicLimits
from tests.support.records import a_partition, a_record

Run = Callable[..., Any]
ENCODER = ResultEncoder("orders.results", [], TopicLimits([]))
LETTER = DeadLettered([Output("orders.dead", None, b"", [])])


@pytest.fixture(params=["def", "async def"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a record through handlers of both kinds; further ones by topic."""
    is_async = request.param == "async def"

    def run(
        record: Record, call: Any, dead: Any = None, *, attempts: float = 4, **routes: Any
    ) -> Any:
        def form(function: Any) -> Any:
            async def coroutine(*what: Any) -> Any:
                return function(*what)

            return coroutine if is_async else function

        handlers = Handlers(
            Handler("default", form(call), is_async, dead=form(dead) if dead else None),
            {topic: Handler(topic, form(route), is_async) for topic, route in routes.items()},
        )
        now = time.monotonic_ns()
        if is_async:
            return asyncio.run(
                _awaited(make_async_invoke(handlers, ENCODER, 60.0, attempts)(record, now))
            )
        return make_invoke(handlers, ENCODER, 60.0, attempts)(record, now, this_thread())

    return run


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


@pytest.fixture(autouse=True)
def _plain_logging() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def come_again(topic: str = "payments") -> Record:
    """A record of the requeue topic, as the poll loop makes it."""
    record = a_record(a_partition("orders.requeue"), 3)
    record.comes_again(Envelope.open([(SOURCE, f"{topic}/0/42/1700".encode())]), scoreboard_index=1)
    return record


def telling(error: BaseException) -> Record:
    record = a_record(a_partition(), 7)
    record.on_dead = OnDeadCall(error, LETTER)
    return record


def test_a_handler_knows_its_last_attempt(run: Run) -> None:
    """One delay is two runs."""
    seen: list[bool] = []
    record = a_record(a_partition())
    for record.attempt in (1, 2, 3):
        run(record, lambda message: seen.append(message.last), attempts=2)
    assert seen == [False, True, True]


def test_a_handler_knows_how_long_it_may_take(run: Run) -> None:
    seen: list[float] = []
    run(a_record(a_partition()), lambda message: seen.append(message.remaining()))
    assert 50 < seen[0] <= 60


def test_a_message_that_a_handler_keeps_stays_as_it_was(run: Run) -> None:
    kept: list[Message] = []
    for offset in range(3):
        run(a_record(a_partition(), offset), kept.append)
    assert [message.offset for message in kept] == [0, 1, 2]


def test_a_message_in_a_closure_or_a_traceback_stays_as_it_was(run: Run) -> None:
    """A thread uses its message again only if nothing else refers to it."""
    told: list[Callable[[], int]] = []

    def fail(message: Message) -> None:
        raise ValueError

    run(a_record(a_partition(), 1), lambda message: told.append(lambda: message.offset))
    with pytest.raises(ValueError) as raised:
        run(a_record(a_partition(), 2), fail)
    run(a_record(a_partition(), 3), lambda _: None)
    frames = raised.value.__traceback__
    while frames is not None and "message" not in frames.tb_frame.f_locals:
        frames = frames.tb_next
    assert frames is not None
    assert (told[0](), frames.tb_frame.f_locals["message"].offset) == (1, 2)


def test_a_thread_uses_a_message_again_that_nobody_keeps() -> None:
    """To make one for each run would take a fifth of the time of a cheap run."""
    thread = ThreadCall()
    handlers = Handlers(Handler("default", lambda _: None, False), {})
    invoke = make_invoke(handlers, ENCODER, 60.0)
    invoke(a_record(a_partition(), 1), 0, thread)
    first = id(thread.running)
    invoke(a_record(a_partition(), 2), 0, thread)
    assert isinstance(thread.running, Message)
    assert (id(thread.running), thread.running.offset) == (first, 2)


def test_a_record_that_comes_again_has_the_handler_of_its_source(run: Run) -> None:
    """There is none for the requeue topic."""
    seen: list[tuple[str, int]] = []

    def settle(message: Message) -> None:
        seen.append((message.topic, message.offset))

    run(come_again(), pytest.fail, payments=settle)
    assert seen == [("payments", 42)]


def test_a_retried_record_is_in_hand_by_its_source_position() -> None:
    """A suspect is known by it, wherever it was taken from."""
    record = come_again()
    assert place_of(record) == (1 << PLACE_BITS) + 42
    record.envelope = None
    assert place_of(record) == 3


def test_the_handler_is_told_of_a_dead_letter_and_is_not_run(run: Run) -> None:
    told: list[tuple[int, BaseException]] = []
    error = ValueError("no")
    outcome = run(telling(error), pytest.fail, lambda m, e: told.append((m.offset, e)))
    assert outcome is LETTER
    assert told == [(7, error)]


class Unshown(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("raised", [RuntimeError("its own"), SystemExit(1), Unshown()])
def test_an_exception_of_dead_is_a_warning(run: Run, raised: BaseException) -> None:
    """The dead letter is what must not be lost."""

    def dead(_message: Message, _error: BaseException) -> None:
        raise raised

    with capture_logs() as lines:
        assert run(telling(ValueError("no")), pytest.fail, dead) is LETTER
    [line] = lines
    assert line["log_level"] == "warning"
    assert line["record"] == "orders:0:7"
    assert type(raised).__name__ in line["error"]


def test_lines_of_a_run_name_its_record(run: Run) -> None:
    seen: list[object] = []
    record = a_record(a_partition(), 8)
    record.attempt = 2
    run(record, lambda _message: seen.append(fields()))
    assert seen == [{"record": "orders:0:8", "attempt": 2}]


def test_lines_of_a_dead_letters_notice_name_its_record(run: Run) -> None:
    seen: list[object] = []
    run(telling(ValueError("no")), pytest.fail, lambda _message, _error: seen.append(fields()))
    assert seen == [{"record": "orders:0:7", "attempt": 1}]


def test_ordinary_records_run_beside_dead_letter_notices(run: Run) -> None:
    seen: list[int] = []
    run(a_record(a_partition(), 8), lambda m: seen.append(m.offset), pytest.fail)
    assert seen == [8]


def test_a_plain_dead_of_an_async_handler_is_told_too() -> None:
    told: list[int] = []

    async def call(_: Message) -> None:
        pytest.fail("run")

    handlers = Handlers(Handler("h", call, True, dead=lambda m, _: told.append(m.offset)), {})
    run_one = make_async_invoke(handlers, ResultEncoder("results", [], TopicLimits([])), 60.0)
    assert asyncio.run(_awaited(run_one(telling(ValueError("no")), 0))) is LETTER
    assert told == [7]
