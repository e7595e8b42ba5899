"""Back-off and the crash-loop limit have the numbers of the default RestartPolicy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kworker.core.restart import (
    Backoff,
    CrashSeries,
    GiveUp,
    RestartHistory,
    RestartPolicy,
    StartAgain,
)

POLICY = RestartPolicy()


class Life:
    """Lets a slot die again and again on a clock of its own."""

    def __init__(self) -> None:
        self.history = RestartHistory(POLICY)
        self.now = 100.0

    def dies(self, *, after_s: float, polled: bool = True, killed: bool = False):
        self.now += after_s
        answer = self.history.died(now=self.now, life_s=after_s, polled=polled, killed=killed)
        self.now += answer.delay_s if isinstance(answer, StartAgain) else 0
        return answer

    def delays(self, count: int, **death) -> list[float]:
        return [self.dies(**death).delay_s for _ in range(count)]


def test_a_worker_that_polled_starts_again_at_once():
    assert Life().dies(after_s=60) == StartAgain(0.0, 0)


def test_restarts_wait_from_the_third_quick_death_up_to_30_s():
    """The first respawns must be quick, for the partitions wait; a loop must not be hot."""
    assert Life().delays(9, after_s=0.5) == [0, 0, 1, 2, 4, 8, 16, 30, 30]


def test_deaths_further_apart_than_the_window_never_wait():
    assert Life().delays(20, after_s=5.1) == [0] * 20


def test_a_calm_life_ends_the_back_off():
    life = Life()
    life.delays(5, after_s=0.1)
    assert life.dies(after_s=11).delay_s == 0
    assert life.delays(2, after_s=0.1) == [0, 1]


def test_a_long_wait_does_not_reset_the_backoff():
    """A long delay empties the window of ten seconds, which must not look like calm."""
    assert Life().delays(12, after_s=2)[-3:] == [30, 30, 30]


def test_five_failed_starts_in_a_row_are_given_up():
    life = Life()
    answers = [life.dies(after_s=0.4, polled=False) for _ in range(5)]
    assert answers == [
        StartAgain(1, 1),
        StartAgain(2, 2),
        StartAgain(4, 3),
        StartAgain(8, 4),
        GiveUp(5),
    ]


def test_a_poll_ends_the_row_of_failed_starts():
    life = Life()
    for _ in range(4):
        life.dies(after_s=0.1, polled=False)
    assert life.dies(after_s=30, polled=True) == StartAgain(0.0, 0)
    assert life.dies(after_s=0.1, polled=False).failed_starts == 1


def test_sigkill_at_boot_is_never_given_up_and_never_hot():
    """Out of memory at boot passes when memory comes back; the row is neither longer nor over."""
    life = Life()
    life.dies(after_s=0.1, polled=False)
    assert life.delays(50, after_s=0.1, polled=False, killed=True)[-1] == 30
    assert life.dies(after_s=0.1, polled=False) == StartAgain(30, 2)


@given(st.lists(st.tuples(st.floats(0, 40), st.booleans(), st.booleans()), max_size=60))
def test_restarts_are_bounded_whatever_happens(deaths):
    """Starts are never more than so many within any ten seconds."""
    life, starts = Life(), []
    for after_s, polled, killed in deaths:
        answer = life.dies(after_s=after_s, polled=polled, killed=killed)
        if isinstance(answer, GiveUp):
            break
        assert 0 <= answer.delay_s <= POLICY.longest_delay_s
        starts.append(life.now)
    for start in starts:
        # Two at once, then delays of 1, 2, 4 s; a calm life may come in between.
        assert sum(start <= other <= start + 10 for other in starts) <= 7


def test_a_backoff_doubles_to_its_maximum_and_resets_when_calm():
    backoff = Backoff(1, 30, calm_s=60)
    assert [backoff.failed(5) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.failed(61) == 1


@pytest.mark.parametrize(
    ("lives", "isolate_s"),
    [
        ([(5, True)] * 2, 0),  # the records in hand are suspects, and found
        ([(5, True)] * 3, 60),
        ([(5, True)] * 5, 240),
        ([(170, True)] * 3, 0),  # each ends a series
        ([*[(5, True)] * 3, (170, True)], 120),  # of those 60 s were isolated
        ([*[(5, True)] * 3, (190, True)], 0),
        ([*[(5, True)] * 3, (190, True), *[(5, True)] * 2], 60),
        ([(5, True), (5, False), (5, True), (5, False), (5, True)], 60),
        ([*[(5, True)] * 3, (5, False)], 60),  # that life was cut short
        ([(5, False)] * 9, 0),
        ([(5, True)] * 30, 3600),
    ],
)
def test_a_series_of_crashes_isolates_all_records_for_a_while(
    lives: list[tuple[float, bool]], isolate_s: float
):
    """What a record left behind crashes the process after its end: no record in hand did it."""
    series = CrashSeries(POLICY)
    for life_s, crashed in lives:
        series.ended(life_s, crashed=crashed)
    assert series.isolate_s == isolate_s
