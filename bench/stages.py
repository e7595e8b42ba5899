"""Where the time of a worker goes: wall and CPU time by stage, counted inside the worker.

Imported by a handler's module, so that it is in the worker before its threads start. A stage is a
method that handles many records in a call, so that counting costs little. Its own time is without
that of the stages that it calls. The wall time of a stage that is not CPU time is spent waiting:
for the interpreter's lock, for a CPU, or in stages that are not in NEVER_BLOCK for something to do.
How long threads wait for a CPU is counted by thread and not by stage: in each call it would be dear
to read.
"""

import functools
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kworker.clients.consumer import KafkaConsumer
from kworker.clients.producer import KafkaProducer
from kworker.clients.transactions import KafkaTransactor
from kworker.core.lanes import Lanes
from kworker.worker.dispatch import Dispatch
from kworker.worker.handlers.async_pool import AsyncPool
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.thread_pool import ThreadPool
from kworker.worker.intake import Intake
from kworker.worker.poll_loop import PollLoop
from kworker.worker.publish.committer import Committer
from kworker.worker.publish.exactly_once import ExactlyOnce
from kworker.worker.publish.output_batch import OutputBatch
from kworker.worker.settlement import Settlement

WRITE_EVERY_S = 0.5
_KINDS = ("wall", "cpu")


class Stage(NamedTuple):
    """A stage and the method whose calls are timed."""

    name: str
    owner: type
    method: str


STAGES = (
    Stage("take", KafkaConsumer, "poll"),
    Stage("intake", Intake, "_deliver"),
    Stage("lanes", Lanes, "add"),
    Stage("lanes", Lanes, "add_chunk"),
    Stage("lanes", Lanes, "take"),
    Stage("lanes", Lanes, "take_chunks"),
    Stage("lanes", Lanes, "finish"),
    Stage("hand over", ThreadPool, "feed"),
    Stage("hand over", AsyncPool, "feed"),
    Stage("handlers", ThreadPool, "_run"),
    Stage("handlers", ThreadPool, "_run_chunks"),
    Stage("collect", CompletionQueue, "take"),
    Stage("judge", Dispatch, "turn"),
    Stage("results", Settlement, "add"),
    Stage("produce", OutputBatch, "fill"),
    Stage("report", KafkaProducer, "poll"),
    Stage("report", KafkaTransactor, "poll"),
    Stage("report", KafkaTransactor, "flush"),
    Stage("settle", Settlement, "turn"),
    Stage("commit", Committer, "commit"),
    Stage("commit", ExactlyOnce, "_end"),
    Stage("slack", PollLoop, "_work"),
    Stage("rest of a turn", PollLoop, "turn"),
)
"""In the order of a record's way. The last two have what the others leave of a turn."""
NEVER_BLOCK = ("intake", "lanes", "hand over", "judge", "results", "produce", "settle")
"""Stages of the poll thread that wait for nothing but a CPU or a lock: mostly the interpreter's."""

POLL, HANDLERS, LOOP = "poll thread", "handlers", "event loop"
"""The roles of the threads of a worker that run Python code all the time."""


class _Spent:
    """Nanoseconds by stage: wall time, and CPU time of the thread."""

    __slots__ = ("cpu", "wall")

    def __init__(self) -> None:
        self.wall = self.cpu = 0


class _Thread(threading.local):
    """What this thread has spent in each stage, and in the stages that the present one called."""

    def __init__(self) -> None:
        self.stages = {stage.name: _Spent() for stage in STAGES}
        self.inner = _Spent()
        _THREADS.append(self.stages)


_THREADS: list[dict[str, _Spent]] = []
_HERE = _Thread()


def install(report: Path) -> None:
    """Counts from now on, and writes the sums to `report` as JSON every half second."""
    for stage in STAGES:
        setattr(stage.owner, stage.method, _timed(stage))
    turn, due = PollLoop.turn, 0.0

    @functools.wraps(turn)
    def written(loop: PollLoop) -> None:
        nonlocal due
        turn(loop)
        if (now := time.monotonic()) >= due:
            due = now + WRITE_EVERY_S
            _write(report, loop.stats().done)

    PollLoop.turn = written  # type: ignore[method-assign, assignment]


def _timed(stage: Stage) -> Callable[..., Any]:
    call, name = getattr(stage.owner, stage.method), stage.name
    here, wall_ns, cpu_ns = _HERE, time.monotonic_ns, time.thread_time_ns

    @functools.wraps(call)
    def timed(*arguments: Any, **named: Any) -> Any:
        outer, here.inner = here.inner, _Spent()
        began, cpu = wall_ns(), cpu_ns()
        try:
            return call(*arguments, **named)
        finally:
            cpu, wall = cpu_ns() - cpu, wall_ns() - began
            spent, inner = here.stages[name], here.inner
            spent.wall += wall - inner.wall
            spent.cpu += cpu - inner.cpu
            outer.wall += wall
            outer.cpu += cpu
            here.inner = outer

    return timed


def scheduled() -> dict[str, list[int]]:
    """The nanoseconds that the threads of each role have spent on a CPU, and waiting for a CPU.

    The caller is the poll thread; the others are told by their names. Raises FileNotFoundError if
    the kernel does not count the waits for a CPU.
    """
    found = {POLL: _scheduled(threading.get_native_id()), HANDLERS: [0, 0], LOOP: [0, 0]}
    for thread in threading.enumerate():
        if (role := _role(thread.name)) and thread.native_id:
            with suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
                spent = zip(found[role], _scheduled(thread.native_id), strict=True)
                found[role] = [before + more for before, more in spent]
    return found


def _role(thread_name: str) -> str | None:
    if thread_name == "handlers":
        return LOOP
    return HANDLERS if thread_name.startswith("handler-") else None


def _scheduled(thread_id: int) -> list[int]:
    told = Path(f"/proc/self/task/{thread_id}/schedstat").read_text()
    return [int(number) for number in told.split()[:2]]


def _write(report: Path, done: int) -> None:
    stages = {
        name: [sum(getattr(thread[name], kind) for thread in list(_THREADS)) for kind in _KINDS]
        for name in _THREADS[0]
    }
    times = os.times()
    told = {
        "at_s": time.monotonic(),
        "done": done,
        "stages": stages,
        "threads": scheduled(),
        "process_s": times.user + times.system,
    }
    new = report.with_suffix(".new")
    new.write_text(json.dumps(told))
    new.replace(report)
