"""The cost of a record, learned from runs, and the runs that follow from it."""

import pytest

from kworker.worker.handlers.run_cost import RUN_MOST, RunCost

THREADS = 16


def learned(record_s: float, computing: float) -> RunCost:
    cost = RunCost(THREADS)
    for _ in range(100):
        cost.add(record_s, computing)
        cost.learn()
    return cost


@pytest.mark.parametrize(
    ("record_s", "size"), [(0.01, 1), (0.001, 1), (0.0001, 10), (1e-7, RUN_MOST)]
)
def test_a_run_takes_a_millisecond_if_its_records_are_short(record_s: float, size: int) -> None:
    assert learned(record_s * 0.99, 0.0).run_size == size


@pytest.mark.parametrize(
    ("record_s", "computing", "size"),
    [
        (1e-5, 0.9, 1000),
        (1e-5, 0.1, 100),
        (0.0002, 0.9, 50),
        (0.0004, 0.9, 2),
        (1e-6, 0.9, RUN_MOST),
    ],
)
def test_runs_of_handlers_that_compute_are_ten_times_as_long(
    record_s: float, computing: float, size: int
) -> None:
    """Else the interpreter's lock would change hands more often, to no other record's advantage."""
    assert learned(record_s * 0.9999, computing).run_size == size


@pytest.mark.parametrize(
    ("record_s", "computing", "runs"),
    [(0.01, 1.0, 32), (1e-6, 0.9, 2), (1e-6, 0.2, 8), (1e-6, 0.0, 32)],
)
def test_cheap_handlers_that_compute_get_few_threads(
    record_s: float, computing: float, runs: int
) -> None:
    cost = learned(record_s, computing)
    assert cost.useful_runs == runs
    assert cost.computes is (runs < 8)


def test_the_first_runs_are_of_one_record_for_each_thread() -> None:
    cost = RunCost(THREADS)
    cost.learn()
    assert (cost.run_size, cost.useful_runs, cost.cheap) == (1, 2 * THREADS, False)


def test_one_odd_run_does_not_decide() -> None:
    cost = learned(0.01, 0.0)
    cost.add(1e-6, 0.9)
    cost.learn()
    assert not cost.cheap
