"""Who is to blame for a death: only what kills alone, each time, and nobody beside it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kworker.core.suspects import (
    Blame,
    CountedDeath,
    Fresh,
    ProcessEnd,
    Suspect,
    Trial,
    TrialPolicy,
)

CRASH = ProcessEnd("SIGSEGV", Blame.HANDLER)
KILL = ProcessEnd("SIGKILL", Blame.UNSURE)
TIMEOUT = ProcessEnd("overran", Blame.TIMEOUT)
CLOSED = ProcessEnd("SIGKILL", Blame.NOBODY)


def a_suspect(number: int = 0, **more) -> Suspect:
    return Suspect(("orders", 0, number), **{"why": "crash", **more})


def a_trial(*suspects: Suspect, crash_limit: int = 2) -> Trial:
    trial = Trial(TrialPolicy(crash_limit))
    for number, suspect in enumerate(suspects):
        trial.add(number, suspect)
    return trial


def some(count: int) -> list[Suspect]:
    return [a_suspect(number) for number in range(count)]


def test_all_suspects_run_together_first():
    """As in the pool: what was in hand beside a killer is done as fast as before."""
    assert a_trial(*some(5)).begin(used=False) == [0, 1, 2, 3, 4]


def test_after_a_death_the_first_half_runs_alone_then_the_second():
    trial = a_trial(*some(5))
    trial.begin(used=False)
    assert trial.died([0, 1, 2, 3, 4], CRASH) is None
    assert trial.begin(used=False) == [0, 1, 2]
    for number in (0, 1, 2):
        trial.ended(number)
    assert trial.begin(used=True) == [3, 4]


def test_records_not_in_hand_are_not_halved_and_go_first():
    """A death says nothing of what was in nobody's hand."""
    trial = a_trial(*some(6))
    trial.begin(used=False)
    trial.ended(0)
    trial.died([1, 2], CRASH)
    assert trial.begin(used=False) == [3, 4, 5]


def test_a_record_in_hand_at_a_death_gets_a_fresh_process():
    """What others left behind in a process may be what kills it."""
    trial = a_trial(*some(2))
    trial.begin(used=False)
    trial.died([0, 1], CRASH)
    assert trial.begin(used=False) == [0]
    trial.ended(0)
    assert trial.begin(used=True) is Fresh.PROCESS
    assert trial.begin(used=False) == [1]


def test_a_death_beside_others_or_after_others_is_not_counted():
    trial = a_trial(*some(2))
    trial.begin(used=False)
    assert trial.died([0], CRASH) is None  # the other one waited beside it
    assert trial.begin(used=False) == [1]
    trial.ended(1)

    trial = a_trial(a_suspect())
    trial.begin(used=True)
    assert trial.died([0], CRASH) is None
    assert trial.begin(used=True) is Fresh.PROCESS


def test_a_suspect_at_the_limit_is_convicted_with_its_ends():
    trial = a_trial(a_suspect(ended=("SIGKILL",)))
    assert trial.begin(used=False) == [0]
    once = trial.died([0], CRASH)
    assert once == CountedDeath(
        0, a_suspect(deaths=1, ended=("SIGKILL", "SIGSEGV")), convicted=False
    )
    trial.begin(used=False)
    twice = trial.died([0], CRASH)
    assert twice is not None
    assert twice.convicted
    assert twice.suspect.deaths == 2
    assert trial.begin(used=False) == []


def test_a_record_with_earlier_deaths_counts_them_and_goes_last():
    trial = a_trial(a_suspect(0, deaths=1), a_suspect(1))
    assert trial.begin(used=False) == [1]
    trial.ended(1)
    assert trial.begin(used=True) is Fresh.PROCESS
    assert trial.begin(used=False) == [0]
    counted = trial.died([0], CRASH)
    assert counted is not None
    assert counted.convicted


def test_an_ambiguous_kill_needs_two_more_to_convict():
    """The system that is short of memory sends SIGKILL, and so does a person or a test."""
    trial = a_trial(a_suspect())
    convicted = []
    for _ in range(4):
        trial.begin(used=False)
        counted = trial.died([0], KILL)
        assert counted is not None
        convicted.append(counted.convicted)
    assert convicted == [False, False, False, True]


def test_ambiguous_kills_do_not_count_with_a_crash():
    trial = a_trial(a_suspect(deaths=2, unsure=1))
    trial.begin(used=False)
    counted = trial.died([0], KILL)
    assert counted is not None
    assert not counted.convicted
    trial.begin(used=False)
    counted = trial.died([0], CRASH)
    assert counted is not None
    assert counted.convicted


def test_a_record_that_timed_out_runs_alone_and_last():
    """Beside others it would hold them up for the whole time-out."""
    trial = a_trial(a_suspect(0, why="timeout"), a_suspect(1), a_suspect(2, why="timeout"))
    assert trial.begin(used=False) == [1]
    trial.ended(1)
    assert trial.begin(used=False) == [0]
    counted = trial.died([0], TIMEOUT)
    assert counted is not None
    assert counted.suspect.why == "timeout"
    assert trial.begin(used=False) == [2]


def test_a_timeout_leaves_the_other_suspects_unchanged():
    trial = a_trial(*some(4))
    trial.begin(used=False)
    trial.died([2], TIMEOUT)
    assert trial.begin(used=False) == [0, 1, 3]


def test_a_closed_process_changes_no_suspect():
    """A revoke in the middle of the halving must not begin it anew."""
    trial = a_trial(*some(4))
    trial.begin(used=False)
    trial.died([0, 1, 2, 3], CRASH)
    assert trial.begin(used=False) == [0, 1]
    assert trial.died([0, 1], CLOSED) is None
    assert trial.begin(used=False) == [0, 1]
    trial.died([], CLOSED)
    assert trial.waiting == 4


@pytest.mark.parametrize("when", ["running", "together", "apart"])
def test_a_closed_trial_forgets_its_records(when: str):
    trial = a_trial(*some(2))
    if when != "together":
        trial.begin(used=False)
    if when == "apart":
        trial.died([0, 1], CRASH)
    for number in (0, 1, 1):
        trial.ended(number)
    assert trial.waiting == 0
    assert trial.begin(used=False) == []


class Cell:
    """Runs what a trial gives it: killers kill it, the others end, chance kills it at times."""

    def __init__(self, suspects: dict[int, Suspect], killers: set[int], limit: int) -> None:
        self.killers = killers
        self.limit = limit
        self.journal = dict(suspects)
        self.alone: dict[int, int] = {}
        self.convicted: list[int] = []
        self.done: list[int] = []
        self.deaths = 0
        self.new_worker()

    def new_worker(self) -> None:
        """Its cell dies with the old one; what was counted stands in the journal."""
        self.trial = Trial(TrialPolicy(self.limit))
        self.used = False
        for number, suspect in self.journal.items():
            self.trial.add(number, suspect)

    def turn(self, threads: int, chance: str, at: int) -> bool:
        """One run; False when nothing is left."""
        run = self.trial.begin(used=self.used)
        if run is Fresh.PROCESS:
            self.used = False
            return True
        if not run:
            return False
        alone, self.used = len(run) == 1 and not self.used, True
        hands, queue = run[:threads], run[threads:]
        ends = [number for number in hands if number not in self.killers][:at]
        if chance == "worker":
            self.new_worker()
            return True
        if chance == "cell":
            self._dies(hands, KILL, alone)
            return True
        for number in ends:
            self._end(number)
            hands.remove(number)
            hands += queue[:1]
            queue = queue[1:]
        while hands:
            if self.killers & set(hands):
                self._dies(hands, CRASH, alone)
                return True
            self._end(hands.pop(0))
            hands += queue[:1]
            queue = queue[1:]
        return True

    def _end(self, number: int) -> None:
        self.trial.ended(number)
        self.journal.pop(number)
        self.done.append(number)

    def _dies(self, hands: list[int], end: ProcessEnd, alone: bool) -> None:
        self.deaths += 1
        self.used = False
        counted = self.trial.died(hands, end)
        assert (counted is not None) == alone
        if counted is None:
            return
        self.alone[counted.number] = self.alone.get(counted.number, 0) + 1
        self.journal[counted.number] = counted.suspect
        if counted.convicted:
            self.convicted.append(self.journal.pop(counted.number).place[2])


CHANCES = st.lists(
    st.tuples(st.sampled_from(["", "", "", "worker"]), st.integers(0, 4)), max_size=12
)


@settings(max_examples=300)
@given(st.data())
def test_exactly_the_killers_are_convicted(data: st.DataObject):
    """Whoever dies beside it, and however often the worker is killed meanwhile."""
    count = data.draw(st.integers(1, 40))
    killers = data.draw(st.sets(st.integers(0, count - 1), max_size=4))
    limit = data.draw(st.integers(1, 3))
    threads = data.draw(st.integers(1, 20))
    chances = data.draw(CHANCES)
    cell = Cell({number: a_suspect(number) for number in range(count)}, killers, limit)
    turns = 0
    while cell.turn(threads, *(chances[turns] if turns < len(chances) else ("", 0))):
        turns += 1
        assert turns < 1000
    assert sorted(cell.convicted) == sorted(killers)
    assert sorted(cell.done) == sorted(set(range(count)) - killers)
    assert all(cell.alone[killer] == limit for killer in killers)
    assert set(cell.alone) == killers
    halvings = math.ceil(math.log2(max(threads, 2))) + 1
    restarts = 1 + sum(chance == "worker" for chance, _ in chances)
    assert cell.deaths <= len(killers) * (limit + halvings * restarts)


@settings(max_examples=200)
@given(st.integers(1, 20), st.sets(st.integers(0, 19), max_size=2), st.integers(0, 1))
def test_random_kills_convict_no_innocent_record(count: int, killers: set[int], every: int):
    """Three kills, wherever they strike, stay below what an unsure conviction takes."""
    killers &= set(range(count))
    cell = Cell({number: a_suspect(number) for number in range(count)}, killers, limit=2)
    kills, turns, more = 3, 0, True
    while more:
        strikes = kills > 0 and turns % (every + 1) == 0
        kills -= strikes
        more = cell.turn(8, "cell" if strikes else "", 0)
        turns += 1
    assert sorted(cell.convicted) == sorted(killers)
