"""Runs without progress are told, and those that only wait for a CPU or the lock are not."""

from collections import deque
from collections.abc import Iterator

import pytest

from kworker.worker.handlers.run_watch import STUCK_S, STUCK_S_MOST, RunWatch

FAST_S = 1e-5  # of a record
TICK_S = 0.6 * STUCK_S  # long enough for a look, also as the sum of floats


class Looks:
    """A poll thread that looks again and again, and computes for a share of its time."""

    def __init__(self, threads: int = 1) -> None:
        self.now = self.computed_s = 0.0
        self.watch = RunWatch[deque[int]](threads, lambda: self.computed_s)
        self.current: list[deque[int] | None] = [deque([1, 2, 3])] * threads
        self.look(1.0)

    def look(self, after_s: float, busy: float = 0.0, record_s: float = FAST_S) -> int | None:
        """Returns the number of stuck runs."""
        self.now += after_s
        self.computed_s += after_s * busy
        stuck = self.watch.look(self.current, self.now, record_s)
        return None if stuck is None else len(stuck)

    def until_stuck(self, every_s: float, busy: float = 0.0, record_s: float = FAST_S) -> float:
        """Returns the seconds that it took."""
        began = self.now
        while not self.look(every_s, busy, record_s):
            assert self.now - began < 1.0
        return self.now - began


@pytest.mark.parametrize(
    ("busy", "took_s"),
    [(0.0, STUCK_S), (0.5, 2 * STUCK_S), (0.75, 4 * STUCK_S), (1.0, STUCK_S_MOST)],
)
def test_only_time_in_which_others_may_run_counts(busy: float, took_s: float) -> None:
    assert Looks().until_stuck(TICK_S, busy) == pytest.approx(took_s, abs=1.01 * TICK_S)


def test_a_process_that_was_stopped_has_no_stuck_run() -> None:
    """It learns of that time at once; a run that then moves was never stuck."""
    looks = Looks()
    for _ in range(20):
        assert looks.look(60.0) == 0
        run = looks.current[0]
        assert run is not None
        run.append(4)
        assert looks.look(STUCK_S) == 0
    assert looks.until_stuck(STUCK_S) <= 2 * STUCK_S


@pytest.mark.parametrize("record_s", [0.01, 0.04, 10.0])
def test_slow_handlers_have_more_time(record_s: float) -> None:
    expected = min(2 * record_s, STUCK_S_MOST)
    took_s = Looks().until_stuck(0.001, record_s=record_s)
    assert took_s == pytest.approx(expected, abs=0.6 * expected)


def test_looks_that_come_too_early_tell_nothing() -> None:
    looks = Looks()
    found = [looks.look(TICK_S / 4) for _ in range(8)]
    assert found == [None, None, None, 0, None, None, None, 1]


def runs() -> Iterator[deque[int]]:
    while True:
        yield deque([1])


def test_a_run_that_moves_or_ends_is_not_stuck() -> None:
    looks, new = Looks(), runs()
    moving = deque(range(1000))
    for _ in range(100):
        moving.popleft()
        looks.current = [moving]
        assert looks.look(STUCK_S) == 0
    for _ in range(100):
        looks.current = [next(new)]
        assert looks.look(STUCK_S) == 0
    looks.current = [None]
    assert [looks.look(STUCK_S) for _ in range(10)] == [0] * 10


def test_a_stuck_run_stays_so_when_its_rest_was_taken_back() -> None:
    looks = Looks(threads=2)
    slow, moving = deque([1, 2]), deque(range(1000))
    looks.current = [slow, moving]
    looks.look(STUCK_S)

    def look() -> int | None:
        moving.popleft()
        return looks.look(STUCK_S)

    assert [look() for _ in range(2)] == [0, 1]
    slow.clear()
    assert [look() for _ in range(3)] == [1, 1, 1]
    looks.current = [deque([1]), moving]
    assert look() == 0
