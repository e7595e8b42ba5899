"""The ledger against a model that keeps everything it was ever told."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kworker.core.ledger import Ledger


class LedgerAgainstModel(RuleBasedStateMachine):
    """Deliveries with gaps, settled in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(10)
        self.end = 10
        self.delivered: list[int] = []
        self.settled: set[int] = set()
        self.highest = 10

    @property
    def unsettled(self) -> list[int]:
        return [offset for offset in self.delivered if offset not in self.settled]

    @rule(gaps=st.lists(st.sampled_from([0, 0, 0, 1, 2, 30]), min_size=1, max_size=4))
    def deliver(self, gaps: list[int]) -> None:
        offsets = []
        for gap in gaps:
            offsets.append(self.end + gap)
            self.end = offsets[-1] + 1
        assert self.ledger.deliver_run(offsets)
        self.delivered += offsets

    @rule(back=st.integers(1, 50))
    def deliver_what_was_delivered(self, back: int) -> None:
        """The client went back: nothing may change, or it would be settled twice."""
        assert not self.ledger.deliver_run([self.end - back, self.end - back + 1])

    @precondition(lambda self: self.unsettled)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        offsets = data.draw(st.lists(st.sampled_from(self.unsettled), min_size=1))
        self.ledger.settle(offsets)
        self.settled.update(offsets)

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        self.ledger.settle([data.draw(st.sampled_from(sorted(self.settled)))])

    @rule(ahead=st.integers(-3, 5))
    def reach_the_end(self, ahead: int) -> None:
        """The end of the partition lies beyond markers, or was overtaken meanwhile."""
        self.ledger.reach(self.end + ahead)
        self.end = max(self.end, self.end + ahead)

    @invariant()
    def the_position_is_the_first_unsettled_record_or_the_end(self) -> None:
        """Commit safety: nothing below it is without its end."""
        assert self.ledger.position == min(self.unsettled, default=self.end)
        assert self.ledger.end == self.end

    @invariant()
    def the_position_never_goes_back(self) -> None:
        position = self.ledger.position
        assert position is not None
        assert position >= self.highest
        self.highest = position

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def ask_for_the_highest_but_some(self, data: st.DataObject) -> None:
        """Those that wait may be forgotten beyond the highest that does not."""
        waiting = set(data.draw(st.lists(st.sampled_from(self.unsettled or [-1]))))
        first = min(self.unsettled, default=self.end)
        begun = [o for o in self.delivered if o >= first and o not in waiting]
        assert self.ledger.highest_but(waiting) == max(begun, default=-1)

    @invariant()
    def it_counts(self) -> None:
        first = min(self.unsettled, default=self.end)
        assert self.ledger.unsettled == len(self.unsettled)
        assert self.ledger.beyond == sum(offset > first for offset in self.settled)


TestLedgerAgainstModel = LedgerAgainstModel.TestCase
TestLedgerAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_without_a_committed_position_the_first_record_tells_where_it_begins() -> None:
    """The partition's beginning may have been deleted long ago."""
    ledger = Ledger(None)
    assert (ledger.position, ledger.end) == (None, None)
    ledger.deliver_run([70])
    assert (ledger.position, ledger.end) == (70, 71)


def test_an_empty_partition_without_a_position_takes_that_of_its_end() -> None:
    """Committed, it shows a lag of zero instead of none."""
    ledger = Ledger(None)
    ledger.reach(5)
    assert ledger.position == 5


def test_a_late_report_of_the_end_does_not_let_a_record_be_delivered_again() -> None:
    ledger = Ledger(0)
    ledger.deliver_run([0, 1, 2])
    ledger.reach(1)
    assert not ledger.deliver_run([2])


def test_the_age_is_that_of_the_mark_at_or_below_the_oldest_unsettled_record() -> None:
    """People alert on it, so it may be older than the record, but never younger."""
    ledger = Ledger(0)
    for offset, stamp in ((0, 1000), (4, 2000), (8, 3000)):
        ledger.deliver_run(list(range(offset, offset + 4)))
        ledger.mark(offset, stamp)
    ages = []
    for offset in range(12):
        ages.append(ledger.oldest_ms())
        ledger.settle([offset])
    assert ages == [1000] * 4 + [2000] * 4 + [3000] * 4
    assert ledger.oldest_ms() is None


def test_a_settled_ledger_forgets_its_marks() -> None:
    """An idle partition must not look old when its next record comes."""
    ledger = Ledger(0)
    ledger.deliver_run([0])
    ledger.mark(0, 1000)
    ledger.settle([0])
    assert ledger.oldest_ms() is None
    ledger.deliver_run([1])
    ledger.mark(1, 9000)
    assert ledger.oldest_ms() == 9000


@pytest.mark.parametrize("order", [range(1000), range(999, -1, -1)])
def test_a_run_of_records_settles_in_any_order(order: range) -> None:
    ledger = Ledger(0)
    ledger.deliver_run(list(range(1000)))
    for offset in order:
        ledger.settle([offset])
    assert (ledger.position, ledger.unsettled, ledger.beyond) == (1000, 0, 0)
