"""A child that a handler forked and that comes back from it: a copy, which runs nothing more."""

from pathlib import Path

import pytest

from tests.support.bare_service import python

RECORDS = 12
WAIT_S = 20


@pytest.mark.parametrize(
    ("kind", "event_loop"),
    [
        ("threads", "asyncio"),
        ("loop", "asyncio"),
        ("loop", "uvloop"),
        ("batches", "asyncio"),
        ("async batches", "asyncio"),
        ("async batches", "uvloop"),
    ],
)
def test_a_forked_child_ends_when_its_handler_returns(
    kind: str, event_loop: str, tmp_path: Path
) -> None:
    """It has no poll thread, its client is dead, and what it runs would be done twice."""
    file = tmp_path / "runs"
    done = python("-m", "tests.support.forker", kind, event_loop, file)
    assert done.returncode == 0, done.stderr
    [child] = done.stdout.split()
    lines = [line.split(maxsplit=1) for line in file.read_text().splitlines()]
    assert child not in {pid for pid, _ in lines}
    runs = [int(words) for _, words in lines if words.isdigit()]
    assert sorted(runs) == list(range(RECORDS))
    # What the child wrote to the board would have shown that the handler has ended.
    assert [words for _, words in lines if not words.isdigit()] == ["held True"]


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
def test_a_process_that_a_coroutine_starts_computes_at_full_speed(event_loop: str) -> None:
    """Python tells a forked child when its handler returns; that would slow this one for ever."""
    program = f"""
import asyncio, multiprocessing, os, sys
from kworker.worker.handlers.handler_loop import HandlerLoop
from tests.support.event_loops import EVENT_LOOPS

forked = multiprocessing.get_context("fork")
loop = HandlerLoop(EVENT_LOOPS["{event_loop}"])
os.register_at_fork(after_in_child=lambda: loop.after_fork_in_child(lambda: os._exit(1)))
answers = forked.SimpleQueue()

async def handler():
    process = forked.Process(target=lambda: answers.put(sys.getprofile()))
    process.start()
    await asyncio.to_thread(process.join)
    print(process.exitcode, answers.get())

loop.start()
loop.run(handler).result({WAIT_S})
loop.end()
"""
    done = python("-c", program)
    assert done.stdout == "0 None\n", done.stderr
