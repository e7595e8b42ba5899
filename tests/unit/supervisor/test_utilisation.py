"""The share of their time for which the handlers of a worker run, as its status shows it."""

import pytest

from kworker.core.record import Partition
from kworker.core.restart import RestartPolicy
from kworker.instance.scoreboard import Scoreboard
from kworker.instance.scoreboard_fields import Field
from kworker.supervisor.children.worker_process import WorkerProcess

PLACE = Partition("orders", 0, 1, scoreboard_index=0, position=0, origin=b"").scoreboard_word
OVER_S = 5.0


@pytest.fixture
def worker() -> WorkerProcess:
    """A living worker with two handlers."""
    made = WorkerProcess(0, Scoreboard(1, 2).slots[0], RestartPolicy())
    made.begin_life(pid=77, now=0.0)
    made.slot.words[Field.HANDLERS] = 2
    return made


def test_runs_that_have_ended_and_runs_that_last_both_count(worker: WorkerProcess) -> None:
    """A run of an hour would else be no work until its end."""
    worker.sample(0.0, OVER_S)
    worker.slot.hand(0).take(PLACE, 0)
    worker.slot.words[Field.RUNS_US] = 1_000_000
    worker.sample(4.0, OVER_S)
    assert worker.utilisation() == (4.0 + 1.0) / (4.0 * 2)


def test_it_is_of_the_last_seconds(worker: WorkerProcess) -> None:
    worker.slot.words[Field.RUNS_US] = 0
    worker.sample(0.0, OVER_S)
    worker.slot.words[Field.RUNS_US] = 8_000_000
    worker.sample(4.0, OVER_S)
    assert worker.utilisation() == 1.0
    worker.sample(9.0, OVER_S)
    assert worker.utilisation() == 0.0


def test_it_is_never_more_than_all(worker: WorkerProcess) -> None:
    """A worker writes that a run has ended before it adds up how long it lasted."""
    worker.slot.hand(0).take(PLACE, 0)
    worker.sample(1.0, OVER_S)
    worker.slot.hand(0).clear()
    worker.sample(1.5, OVER_S)
    assert worker.utilisation() == 0.0
    worker.slot.words[Field.RUNS_US] = 30_000_000
    worker.sample(2.0, OVER_S)
    assert worker.utilisation() == 1.0


def test_nothing_is_known_at_first(worker: WorkerProcess) -> None:
    """Nor before its handlers are there."""
    assert worker.utilisation() is None
    worker.sample(0.0, OVER_S)
    assert worker.utilisation() is None
    worker.sample(1.0, OVER_S)
    assert worker.utilisation() == 0.0
    worker.slot.words[Field.HANDLERS] = 0
    assert worker.utilisation() is None
