"""The cell's own thread: what it hears it has run, and it answers for what has ended."""

import os
from collections import deque
from collections.abc import Collection, Iterator

import pytest

from kworker.core.batch import NOT_ATTEMPTED
from kworker.core.headers import Source
from kworker.core.outcome import Failed, Outcome, Output
from kworker.core.record import Partition, Record
from kworker.instance.scoreboard import Scoreboard
from kworker.worker.handlers.completions import CompletionQueue
from kworker.worker.handlers.pool import Take
from kworker.worker.handlers.thread_pool import place_of
from kworker.worker.quarantine.child import IsolatedRunner, Parent
from kworker.worker.quarantine.pipe import Frames, RunRequest, frame
from tests.support.records import outcome_of


class Pool:
    """Takes one record at a time, and ends it when told."""

    def __init__(self) -> None:
        self.completed = CompletionQueue()
        self.has: deque[Record] = deque()
        self.stuck: list[Record] = []

    def feed(self, take: Take) -> int:
        taken = take(1)
        self.has += taken
        return len(taken)

    has_work = False

    def slack_s(self) -> float:
        return 0.0

    def reclaim(self, now: float) -> list[Record]:
        back, self.stuck = self.stuck, []
        return back

    def withdraw(self, going: Collection[Partition]) -> list[Record]:
        return []

    def end(self, outcome: Outcome | list[Output] | None = None) -> None:
        record = self.has.popleft()
        record.outcome = outcome_of(outcome)
        self.completed.add(record)


class Worker:
    """The other ends of a cell's pipes."""

    def __init__(self) -> None:
        reads, self.writes = os.pipe()
        self.reads, writes = os.pipe()
        self.parent = Parent(reads, writes)
        self.fds = (reads, writes, self.reads, self.writes)

    def gives(self, *offsets: int) -> None:
        for offset in offsets:
            source = Source("orders", 3, offset, 1_700_000_000_000)
            os.write(self.writes, frame(RunRequest(100 + offset, source, b"k", b"v", (), 2)))

    def hears(self) -> list[int]:
        return [word.number for word in Frames().add(os.read(self.reads, 1 << 16))]


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    for fd in made.fds:
        os.close(fd)


def a_cell(pool: Pool) -> IsolatedRunner:
    return IsolatedRunner(pool, Scoreboard(1, 4).slots[0])


def offsets(pool: Pool) -> list[int]:
    return [record.offset for record in pool.has]


def test_an_isolated_record_runs_as_its_source_and_is_numbered(worker: Worker):
    pool = Pool()
    cell = a_cell(pool)
    worker.gives(7)
    cell.turn(worker.parent)
    [record] = pool.has
    assert record.source == Source("orders", 3, 7, 1_700_000_000_000)
    assert (record.attempt, record.raw.key(), record.raw.value()) == (2, b"k", b"v")
    pool.end()
    cell.turn(worker.parent)
    assert worker.hears() == [107]


def test_an_isolated_record_of_a_replay_stays_one(worker: Worker):
    """The process encodes its results."""
    pool = Pool()
    cell = a_cell(pool)
    source = Source("orders", 3, 7, 1_700_000_000_000)
    headers = (("kworker-own", b"the producer's"),)
    os.write(worker.writes, frame(RunRequest(107, source, b"k", b"v", headers, 2, b"0a1b2c")))
    cell.turn(worker.parent)
    [record] = pool.has
    assert (record.replay, record.attempt, record.source) == (b"0a1b2c", 2, source)
    assert tuple(record.raw.headers() or ()) == headers
    assert place_of(record) == record.partition.scoreboard_word + 7


def test_the_worker_is_told_the_trace_that_the_run_left(worker: Worker):
    """The outputs of a failed run are made there, and a traced run has replaced the header."""
    pool = Pool()
    cell = a_cell(pool)
    worker.gives(7)
    cell.turn(worker.parent)
    pool.has[0].continue_trace(b"00-1-2-01")
    pool.end(Failed(ValueError()))
    cell.turn(worker.parent)
    [ended] = Frames().add(os.read(worker.reads, 1 << 16))
    assert ended.trace == b"00-1-2-01"


def test_a_record_not_attempted_runs_again_without_an_answer(worker: Worker):
    """The batch failed before it: no attempt was spent, and the worker need not know."""
    pool = Pool()
    cell = a_cell(pool)
    worker.gives(7, 8)
    cell.turn(worker.parent)
    pool.end(NOT_ATTEMPTED)
    cell.turn(worker.parent)
    cell.turn(worker.parent)
    assert offsets(pool) == [8, 7]
    assert all(record.outcome is None for record in pool.has)
    pool.end()
    pool.end()
    cell.turn(worker.parent)
    assert worker.hears() == [108, 107]


def test_records_behind_a_stuck_handler_are_handed_out_again(worker: Worker):
    pool = Pool()
    cell = a_cell(pool)
    worker.gives(7)
    cell.turn(worker.parent)
    pool.stuck = [pool.has.popleft()]
    cell.turn(worker.parent)
    assert offsets(pool) == [7]


def test_the_isolated_process_ends_when_the_worker_hangs_up(worker: Worker):
    pool = Pool()
    os.close(worker.writes)
    worker.fds = worker.fds[:3]
    a_cell(pool).serve(worker.parent)
    assert worker.parent.gone
