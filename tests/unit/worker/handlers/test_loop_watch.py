"""What blocks the event loop is found and named, once, and nothing else is."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from kworker.worker.handlers import handler_loop
from kworker.worker.handlers.handler_loop import HandlerLoop, NewLoop
from kworker.worker.handlers.loop_watch import (
    AGAIN_S,
    BLOCKED_S,
    LOOK_EVERY_S,
    LoopWatch,
    blocking_place,
)
from tests.support.event_loops import EVENT_LOOPS
from tests.support.waiting import eventually

WAIT_S = 10.0
TURN_S = 0.1


class Bench:
    """A loop that runs, and a watch whose clock goes on by `TURN_S` at each turn."""

    def __init__(self, new_loop: NewLoop) -> None:
        self.loop = HandlerLoop(new_loop)
        self.loop.start()
        self.now = 1000.0
        self.watch = LoopWatch(self.loop, lambda: self.now)
        self.released = threading.Event()

    def turn(self, seconds: float, *, has_work: bool = True) -> list[str]:
        """Turns for so long; returns what was logged meanwhile."""
        with capture_logs() as lines:
            for _ in range(round(seconds / TURN_S)):
                self.now += TURN_S
                self.watch.turn(has_work=has_work)
        assert all(line["log_level"] == "warning" for line in lines)
        return [line["event"] for line in lines]

    def block(self, function: Callable[[], Any]) -> None:
        """Has the loop run a function that does not return before `release`."""
        begun = threading.Event()

        async def blocked() -> None:
            begun.set()
            function()

        self.loop.run(blocked)
        assert begun.wait(WAIT_S)

    def release(self) -> None:
        self.released.set()
        eventually(lambda: self.watch._answered, timeout_s=WAIT_S)
        self.released.clear()

    def wait(self) -> None:
        assert self.released.wait(WAIT_S)

    def wait_elsewhere(self) -> None:
        assert self.released.wait(WAIT_S)


WAIT_LINE = Bench.wait.__code__.co_firstlineno + 1


@pytest.fixture(params=EVENT_LOOPS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(EVENT_LOOPS[request.param])
    yield made
    made.released.set()
    made.loop.end()
    made.loop.join(WAIT_S)


def test_the_line_that_blocks_the_loop_is_named_once(bench: Bench) -> None:
    bench.turn(LOOK_EVERY_S)
    bench.block(bench.wait)
    [line] = bench.turn(3 * BLOCKED_S)
    assert line == (
        f"{__file__}:{WAIT_LINE} in wait has blocked the event loop for 1.2 s: all"
        " other records of this process wait until it is done; use await asyncio.sleep() or await"
        " asyncio.to_thread()"
    )


def test_a_line_is_named_again_after_a_minute_only(bench: Bench) -> None:
    """One that blocks for each record would fill the log; another one is new."""
    told = []
    for function in (bench.wait, bench.wait, bench.wait_elsewhere):
        bench.block(function)
        told.append(len(bench.turn(2 * BLOCKED_S)))
        bench.release()
    bench.turn(AGAIN_S)
    bench.block(bench.wait)
    told.append(len(bench.turn(2 * BLOCKED_S)))
    assert told == [1, 0, 1, 1]


def test_a_loop_whose_handlers_wait_is_not_blocked(bench: Bench) -> None:
    waiting = asyncio.Event()
    bench.loop.run(waiting.wait)

    def answered() -> bool:
        return bench.watch._answered

    for _ in range(30):
        assert bench.turn(TURN_S) == []
        eventually(answered, timeout_s=WAIT_S)


def test_a_loop_with_much_work_is_not_blocked(bench: Bench) -> None:
    """A thousand handlers that each compute a little, all of them before the next turn."""
    steps = [threading.Event() for _ in range(20)]
    begun: list[int] = []

    async def compute(number: int) -> None:
        begun.append(number)
        assert steps[number].wait(WAIT_S)

    for number in range(len(steps)):
        bench.loop.run(partial(compute, number))
    for number, step in enumerate(steps):
        eventually(lambda number=number: number in begun, timeout_s=WAIT_S)
        assert bench.turn(BLOCKED_S / 2) == []
        step.set()


def test_a_loop_without_records_is_not_asked(bench: Bench) -> None:
    """An idle worker does nothing."""
    bench.block(bench.wait)
    assert bench.turn(3 * BLOCKED_S, has_work=False) == []
    assert bench.watch._answered


def test_a_process_that_was_suspended_is_judged_anew(bench: Bench) -> None:
    """Both threads stood still, and this one is the first to go on."""
    bench.block(bench.wait)
    bench.turn(0.3)
    bench.now += 3600
    assert bench.turn(BLOCKED_S) == []
    assert len(bench.turn(BLOCKED_S)) == 1


def test_a_loop_that_rests_has_no_blocking_place(bench: Bench) -> None:
    """As when another process has the CPU."""
    frames = eventually(lambda: bench.loop.frame(), timeout_s=WAIT_S)
    assert blocking_place(frames) == ""


@pytest.mark.parametrize("file", ["/srv/handlers.py", "/venv/lib/site-packages/shop/handlers.py"])
def test_a_handler_is_named_and_not_the_package_that_it_calls(file: str) -> None:
    """Also if it is in a package itself."""
    names: dict[str, Any] = {"blocking_place": blocking_place, "sys": sys}
    for at, name, calls in (
        ("/venv/lib/site-packages/requests/api.py", "post", "blocking_place(sys._getframe())"),
        (file, "handle", "post()"),
        (handler_loop.__file__, "serve", "handle()"),
    ):
        exec(compile(f"def {name}():\n    return {calls}\n", at, "exec"), names)
    assert names["serve"]() == f"{file}:2 in handle"
