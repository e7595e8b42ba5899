"""The ledger against a model that keeps everything it was ever told."""

import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kworker.core import ledger
from kworker.core.ledger import Ledger
from kworker.core.offset_map import METADATA_MAX, OffsetRange, encode


def names(runs: list[OffsetRange], offset: int) -> bool:
    return any(begin <= offset < end for begin, end in runs)


class LedgerAgainstModel(RuleBasedStateMachine):
    """Deliveries with gaps, settled in any order; what is settled is forgotten early."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(ledger, "_FORGET_LEAST", 4)
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
        assert self.ledger.deliver_run(offsets) == ()
        self.delivered += offsets

    @rule(back=st.integers(1, 50))
    def deliver_what_was_delivered(self, back: int) -> None:
        """The client went back: nothing may change, or it would be settled twice."""
        assert self.ledger.deliver_run([self.end - back, self.end - back + 1]) is None

    @precondition(lambda self: self.unsettled)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        offsets = data.draw(st.lists(st.sampled_from(self.unsettled), min_size=1))
        self.ledger.settle(offsets)
        self.settled.update(offsets)

    @precondition(lambda self: self.unsettled)
    @rule(number=st.integers(1, 6))
    def settle_the_first(self, number: int) -> None:
        """As cheap handlers do, whose records end in the order of delivery."""
        offsets = self.unsettled[:number]
        self.ledger.settle(offsets)
        self.settled.update(offsets)

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        self.ledger.settle([data.draw(st.sampled_from(sorted(self.settled)))])

    @rule()
    def look_beyond_the_position(self) -> None:
        """What was settled there is told, and forgotten: only the gap is left."""
        position, runs = self.ledger.position_after()
        assert position == self.ledger.position
        beyond = [offset for offset in self.delivered if offset > position]
        assert [o for o in beyond if names(runs, o)] == [o for o in beyond if o in self.settled]

    @precondition(lambda self: self.unsettled)
    @rule(data=st.data(), in_order=st.booleans())
    def look_ahead(self, data: st.DataObject, in_order: bool) -> None:
        """What a transaction would commit is known before it does, and changes nothing."""
        ahead = data.draw(st.lists(st.sampled_from(self.unsettled), unique=True))
        if in_order:
            ahead = self.unsettled[: len(ahead)]
        position, runs = self.ledger.position_after(ahead)
        left = [offset for offset in self.unsettled if offset not in ahead]
        assert position == min(left, default=self.end)
        beyond = [offset for offset in self.delivered if offset > position]
        assert [o for o in beyond if not names(runs, o)] == left[1:]

    @rule(ahead=st.integers(-3, 5))
    def reach_the_end(self, ahead: int) -> None:
        """The end of the partition lies beyond markers, or was overtaken meanwhile."""
        self.ledger.advance_end(self.end + ahead)
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

    def teardown(self) -> None:
        self.patch.undo()

    @invariant()
    def it_counts(self) -> None:
        first = min(self.unsettled, default=self.end)
        assert self.ledger.unsettled == len(self.unsettled)
        assert self.ledger.has_done_beyond == any(offset > first for offset in self.settled)


TestLedgerAgainstModel = LedgerAgainstModel.TestCase
TestLedgerAgainstModel.settings = settings(max_examples=60, stateful_step_count=40)


def test_the_first_record_sets_an_uncommitted_position() -> None:
    """The partition's beginning may have been deleted long ago."""
    a_ledger = Ledger(None)
    assert (a_ledger.position, a_ledger.end) == (None, None)
    a_ledger.deliver_run([70])
    assert (a_ledger.position, a_ledger.end) == (70, 71)


def test_an_empty_partition_takes_the_position_of_its_end() -> None:
    """Committed, it shows a lag of zero instead of none."""
    a_ledger = Ledger(None)
    a_ledger.advance_end(5)
    assert a_ledger.position == 5


def test_a_late_end_report_does_not_repeat_a_record() -> None:
    a_ledger = Ledger(0)
    a_ledger.deliver_run([0, 1, 2])
    a_ledger.advance_end(1)
    assert not a_ledger.deliver_run([2])


def test_the_age_is_of_the_sample_below_the_oldest_unsettled() -> None:
    """People alert on it, so it may be older than the record, but never younger."""
    a_ledger = Ledger(0)
    for offset, stamp in ((0, 1000), (4, 2000), (8, 3000)):
        a_ledger.deliver_run(list(range(offset, offset + 4)))
        a_ledger.sample_timestamp(offset, stamp)
    ages = []
    for offset in range(12):
        ages.append(a_ledger.oldest_ms())
        a_ledger.settle([offset])
    assert ages == [1000] * 4 + [2000] * 4 + [3000] * 4
    assert a_ledger.oldest_ms() is None


def test_a_settled_ledger_forgets_its_timestamps() -> None:
    """An idle partition must not look old when its next record comes."""
    a_ledger = Ledger(0)
    a_ledger.deliver_run([0])
    a_ledger.sample_timestamp(0, 1000)
    a_ledger.settle([0])
    assert a_ledger.oldest_ms() is None
    a_ledger.deliver_run([1])
    a_ledger.sample_timestamp(1, 9000)
    assert a_ledger.oldest_ms() == 9000


@pytest.mark.parametrize("order", [range(1000), range(999, -1, -1)])
def test_a_run_of_records_settles_in_any_order(order: range) -> None:
    a_ledger = Ledger(0)
    a_ledger.deliver_run(list(range(1000)))
    for offset in order:
        a_ledger.settle([offset])
    assert (a_ledger.position, a_ledger.unsettled, a_ledger.has_done_beyond) == (1000, 0, False)


def test_records_settled_beyond_a_gap_take_no_memory() -> None:
    """One record may be stuck with a day of others behind it."""
    a_ledger = Ledger(0)
    a_ledger.deliver_run([0])
    tracemalloc.start()
    for begin in range(1, 300_000, 500):
        offsets = list(range(begin, begin + 500))
        a_ledger.deliver_run(offsets)
        a_ledger.sample_timestamp(begin, begin)
        a_ledger.settle(offsets)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 1_000_000
    assert (a_ledger.position, a_ledger.unsettled) == (0, 1)
    assert a_ledger.position_after() == (0, [(1, 300_001)])


def test_records_done_earlier_are_told_and_count_as_settled() -> None:
    a_ledger = Ledger(10, [(11, 14), (16, 18)])
    assert a_ledger.deliver_run([10, 11, 12]) == {11, 12}
    assert a_ledger.position_after() == (10, [(11, 14), (16, 18)])
    assert a_ledger.deliver_run([13, 14, 15, 16]) == {13, 16}
    assert a_ledger.unsettled == 3
    a_ledger.settle([10, 14])
    assert a_ledger.position_after() == (15, [(16, 18)])
    a_ledger.settle([15])
    assert (a_ledger.position, a_ledger.end) == (18, 17)
    assert a_ledger.deliver_run([17, 18]) == {17}
    assert (a_ledger.position, a_ledger.unsettled, a_ledger.has_done_beyond) == (18, 1, False)


def test_the_ledger_knows_undelivered_records_done_earlier() -> None:
    """Who has an outcome of it in hand then has it for nothing."""
    a_ledger = Ledger(10, [(12, 14), (20, 30)])
    assert [n for n in range(8, 32) if a_ledger.is_done(n)] == [8, 9, 12, 13, *range(20, 30)]
    a_ledger.deliver_run([10, 11])
    a_ledger.settle([11])
    assert [n for n in range(9, 15) if a_ledger.is_done(n)] == [9, 12, 13]
    a_ledger.settle([10])
    assert [n for n in range(9, 15) if a_ledger.is_done(n)] == [9, 10, 11, 12, 13]
    assert not Ledger(None).is_done(0)


def test_records_done_earlier_and_gone_are_not_waited_for() -> None:
    """Retention or compaction took it."""
    a_ledger = Ledger(10, [(12, 14), (20, 30)])
    assert a_ledger.deliver_run([40]) == set()
    assert a_ledger.position_after() == (40, [])
    a_ledger = Ledger(10, [(12, 14), (20, 30)])
    a_ledger.advance_end(15)
    assert a_ledger.position_after() == (15, [(20, 30)])


def full_ledger() -> tuple[Ledger, list[int], int]:
    """One whose offset map has room for no other record; its unsettled offsets, and its end."""
    offsets = list(range(0, 200_000, 50))
    fitting = Ledger(0).count_fitting(offsets)
    assert 1_000 < fitting < len(offsets)
    end = offsets[fitting - 1] + 1
    a_ledger = Ledger(0)
    a_ledger.deliver_run(list(range(end)))
    a_ledger.settle(set(range(end)).difference(offsets))
    return a_ledger, offsets[:fitting], end


def test_an_earlier_full_offset_map_has_room_for_the_same_records() -> None:
    """They are delivered again one by one otherwise, each after the end of the one before."""
    full, offsets, end = full_ledger()
    assert not full.has_room(1, end + 49)
    position, done = full.position_after()
    assert position is not None
    again = Ledger(position, done)
    assert again.count_fitting(list(range(end - 1))) == end - 1
    assert again.deliver_run(list(range(end - 1))) == set(range(end - 1)).difference(offsets)
    assert again.position_after() == (position, done)
    assert again.count_fitting([end - 1, end + 49, end + 99]) == 1


def test_an_earlier_offset_map_is_kept_while_its_records_end() -> None:
    """Else it would be forgotten by the first commit after a restart, or not fit."""
    position, done = full_ledger()[0].position_after()
    again = Ledger(position, done)
    again.deliver_run(list(range(1_001)))
    again.settle(range(0, 1_001, 100))
    position, beyond = again.position_after()
    assert position == 50
    assert beyond[-1_000:] == done[-1_000:]
    assert len(encode(bytes(16), position, beyond)) <= METADATA_MAX


def test_settling_again_what_was_forgotten_changes_nothing() -> None:
    """Who reads the truth back settles what it covers, known or not."""
    a_ledger = Ledger(0, [(3, 5)])
    a_ledger.deliver_run(list(range(10)))
    a_ledger.settle([6, 7])
    a_ledger.position_after()
    a_ledger.settle([6, 3, 4, 7])
    assert (a_ledger.unsettled, a_ledger.position_after()) == (6, (0, [(3, 5), (6, 8)]))
    a_ledger.settle([0, 1, 2, 5, 8, 9])
    assert (a_ledger.position, a_ledger.unsettled) == (10, 0)


def test_a_gap_in_offsets_alone_needs_no_offset_map() -> None:
    """Else each commit of a transactional topic would have a map."""
    a_ledger = Ledger(0)
    a_ledger.deliver_run([0, 2, 4, 6])
    assert not a_ledger.has_done_beyond
    a_ledger.settle([2])
    assert a_ledger.has_done_beyond
