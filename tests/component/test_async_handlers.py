"""Handlers on an event loop: opened before their first record, closed after the last, watched."""

import asyncio
import gc
import os
import re
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kworker.config.model import Config
from kworker.core.batch import batch
from kworker.instance.scoreboard import Scoreboard
from kworker.instance.scoreboard_fields import Field
from kworker.message import Message
from kworker.testing import run
from kworker.worker.handlers import loaded_handlers, loader
from kworker.worker.handlers.loaded_handlers import Handler, Handlers
from kworker.worker.worker import Worker
from tests.support.supervisor_driver import read_config
from tests.support.waiting import eventually

WAIT_S = 10.0
RETRIES = {"retry": {"delays": ["1s"]}}


class Noted:
    """A handler that notes what is called, and on which loop."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()

    def note(self, what: str) -> None:
        self.calls.append(what)
        self.loops.add(asyncio.get_running_loop())


def noting() -> tuple[type, list[Noted]]:
    """An async class with all its methods, and the instances that are made of it."""
    made: list[Noted] = []

    class Handler(Noted):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        async def open(self) -> None:
            await asyncio.sleep(0)
            self.note("open")

        async def __call__(self, given: Message) -> Any:
            self.note("call")
            return given.json()

        async def close(self) -> None:
            await asyncio.sleep(0)
            self.note("close")

    return Handler, made


def test_an_async_class_is_opened_first_and_closed_last() -> None:
    """All on its loop, to which a client of aiohttp or asyncpg is bound."""
    handler, made = noting()
    assert sorted(run(handler, [1, 2]).values()) == [1, 2]
    [instance] = made
    assert instance.calls == ["open", "call", "call", "close"]
    assert len(instance.loops) == 1


def test_a_batch_class_is_opened_and_closed_too() -> None:
    calls: list[str] = []

    class Handler:
        async def open(self) -> None:
            calls.append("open")

        @batch(size=2)
        async def __call__(self, given: list[Message]) -> list[Any]:
            calls.append("call")
            return [None] * len(given)

        async def close(self) -> None:
            calls.append("close")

    run(Handler, [1, 2])
    assert (calls[0], calls[-1]) == ("open", "close")


def test_a_plain_close_of_an_async_class_is_called() -> None:
    calls: list[str] = []

    class Handler:
        async def __call__(self, given: Message) -> None: ...

        def close(self) -> None:
            calls.append("close")

    run(Handler, [1])
    assert calls == ["close"]


def test_a_failure_to_open_is_told_and_no_record_runs() -> None:
    """As one of `__init__`; the worker tries again."""
    handler, made = noting()

    async def fails(self: Any) -> None:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError, match="no database"):
        run(type("Failing", (handler,), {"open": fails}), [1])
    assert made[0].calls == []


def test_an_open_that_takes_too_long_fails() -> None:
    class Handler:
        async def open(self) -> None:
            await asyncio.sleep(3600)

        async def __call__(self, given: Message) -> None: ...

    with pytest.raises(TimeoutError, match=r"^open\(\) did not end within 0\.05 s$"):
        run(Handler, [1], timeout_s=0.05)


def test_a_time_out_of_the_handlers_own_is_left_as_it_is() -> None:
    class Handler:
        async def open(self) -> None:
            raise TimeoutError("the database")

        async def __call__(self, given: Message) -> None: ...

    with pytest.raises(TimeoutError, match=r"^the database$"):
        run(Handler, [1])


def opening(opens: Callable[[], Awaitable[None]]) -> Handlers:
    async def handle(given: Message) -> None: ...

    return Handlers(Handler("notify", handle, is_async=True, open=opens), {})


def test_a_worker_has_a_heartbeat_while_its_handlers_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that may take its time would pass for one that hangs at its start."""
    monkeypatch.setattr(loaded_handlers, "ALIVE_EVERY_S", 0.01)
    monkeypatch.setattr(Worker, "_keep_signals", lambda _self: None)  # pytest keeps its own
    [slot] = Scoreboard(1, 1).slots
    beats: set[int] = set()

    async def opens() -> None:
        for _ in range(500):
            beats.add(slot.words[Field.HEARTBEAT_NS])
            if len(beats) == 3:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("no heartbeats")

    lifeline, _cut_at_the_end = os.pipe()
    worker = Worker(read_config(tmp_path), slot, lifeline, began=0.0)
    worker._wakeup_fd, worker._wakes_fd = os.pipe()
    handlers = opening(opens)
    assert worker._open(handlers)
    handlers.close()


def test_an_open_beyond_its_time_shows_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ignored its cancellation; the supervisor shall end it, as one that blocks the loop."""
    monkeypatch.setattr(loaded_handlers, "ALIVE_EVERY_S", 0.001)
    signs: list[None] = []
    seen: list[int] = []

    async def opens() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        for _ in range(50):
            seen.append(len(signs))
            await asyncio.sleep(0.001)

    handlers = opening(opens)
    handlers.open(0.05, lambda: signs.append(None)).result(WAIT_S)
    handlers.close()
    assert 0 < seen[0] <= seen[-1] <= seen[0] + 1  # which was due at the time-out itself


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """Two classes of one service, of which the second does not open."""
    (tmp_path / "two_classes.py").write_text(
        "calls = []\n"
        "class First:\n"
        "    async def __call__(self, message): ...\n"
        "    async def open(self): calls.append('first opens')\n"
        "    async def close(self): calls.append('first closes')\n"
        "class Second(First):\n"
        "    async def open(self): raise ConnectionError('no database')\n"
        "    async def close(self): calls.append('second closes')\n"
        "class Third(First):\n"
        "    async def close(self): raise ConnectionError('gone')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    routes = {"orders": "two_classes:First", "payments": "two_classes:Second"}
    yield read_config(tmp_path).model_copy(update={"handler": "", "handlers": routes})
    sys.modules.pop("two_classes", None)


def test_what_was_opened_is_closed_when_another_does_not_open(config: Config) -> None:
    """The next try makes new ones, and the connections of these would stay."""
    import two_classes  # type: ignore[import-not-found]

    handlers = loader.load(config)
    with pytest.raises(ConnectionError):
        handlers.open(WAIT_S).result(WAIT_S)
    assert two_classes.calls == ["first opens", "first closes"]
    handlers.loop.join(WAIT_S)
    assert handlers.loop._loop.is_closed()


def test_all_are_closed_although_one_raises(config: Config) -> None:
    import two_classes

    routes = {"orders": "two_classes:First", "payments": "two_classes:Third"}
    handlers = loader.load(config.model_copy(update={"handlers": routes}))
    handlers.open(WAIT_S).result(WAIT_S)
    with pytest.raises(ConnectionError, match="gone"):
        handlers.close()
    assert two_classes.calls == ["first opens", "first opens", "first closes"]
    assert handlers.loop._loop.is_closed()


# -- the end of the loop --------------------------------------------------------------


def warned(call: Callable[[], Any]) -> list[str]:
    """What Python says of resources that the call did not close."""
    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call()
        gc.collect()
    return [str(each.message) for each in told if issubclass(each.category, ResourceWarning)]


def test_no_loop_is_left_open_by_a_test_of_a_handler() -> None:
    """Suites with `-W error` fail by it."""

    async def handle(given: Message) -> None: ...

    assert warned(lambda: run(handle, [1])) == []


def test_no_loop_is_left_open_by_a_test_that_fails() -> None:
    async def waits(given: Message) -> None:
        await asyncio.sleep(3600)

    def given_up() -> None:
        before = set(threading.enumerate())
        with pytest.raises(AssertionError):
            run(waits, [1], timeout_s=0.1)
        eventually(lambda: set(threading.enumerate()) <= before, timeout_s=WAIT_S)

    assert warned(given_up) == []


def test_tasks_that_a_handler_left_are_cancelled_after_its_close() -> None:
    events: list[str] = []

    class Handler:
        async def open(self) -> None:
            self.task = asyncio.create_task(self.refresh())

        async def refresh(self) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                events.append("cancelled")
                raise

        async def __call__(self, given: Message) -> None: ...

        async def close(self) -> None:
            events.append("closed")

    run(Handler, [1])
    assert events == ["closed", "cancelled"]


# -- what blocks it -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["records", "batches"])
def test_a_handler_that_blocks_the_loop_is_named_with_its_line(kind: str) -> None:
    """It calls what is not made for asyncio, and all others wait for it."""
    lines: list[Any] = []

    def told() -> list[str]:
        return [line["event"] for line in lines if "event loop" in line["event"]]

    def blocked() -> None:
        eventually(told, timeout_s=WAIT_S, what="the warning")

    async def one(given: Message) -> None:
        if given.offset == 3:
            blocked()

    @batch(size=5)
    async def many(given: list[Message]) -> list[None]:
        blocked()
        return [None] * len(given)

    with capture_logs() as logged:
        lines = logged
        run(one if kind == "records" else many, range(5))
    [event] = told()
    assert re.fullmatch(
        r".*/waiting\.py:\d+ in eventually has blocked the event .* 1\.\d s: .*", event
    )
