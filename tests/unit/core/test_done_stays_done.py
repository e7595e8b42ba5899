"""What finished stays finished, against an oracle that keeps every offset in a set.

Ledger, map and flow together, with a map so small that its bound is met all the time.
"""

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kworker.core import ledger, offset_map
from kworker.core.flow import Flow, FlowPolicy
from kworker.core.offset_map import (
    Committed,
    Ignored,
    TopicIdentity,
    decode,
    encode,
    origin_of,
    same_topic,
)
from kworker.core.record import Partition

ORIGIN = origin_of(TopicIdentity("cluster", "topic id"), ("topic", 0))


class DoneStaysDone(RuleBasedStateMachine):
    """One partition: deliveries with gaps, ends in any order, commits, and deaths in between."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(offset_map, "MAP_BITS_MAX", 56)
        self.patch.setattr(ledger, "_FORGET_LEAST", 4)
        self.log: list[int] = []
        self.end = 100
        self.done: set[int] = set()
        self.named: set[int] = set()  # by what the group holds
        self.group = Committed(100)
        self.now = 0.0
        self.live()

    def live(self) -> None:
        """A worker begins with what the group holds, and nothing else."""
        done = decode(self.group.metadata, ORIGIN, self.group.position)
        assert not isinstance(done, Ignored)
        self.flow = Flow(FlowPolicy(1_000, 1_000_000, crowded_records=3))
        self.partition = Partition("topic", 0, 1, 0, self.group.position, ORIGIN, done)
        self.next = self.group.position
        self.in_hand: list[int] = []
        self.ended = set(self.named)  # as this worker knows; what was not committed is not

    # -- what happens -----------------------------------------------------------------

    @rule(gaps=st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 70, 5_000]), min_size=1, max_size=30))
    def write(self, gaps: list[int]) -> None:
        """Some offsets have no record: markers, aborted transactions, compaction."""
        for gap in gaps:
            self.log.append(self.end + gap)
            self.end += gap + 1

    @rule(most=st.integers(1, 40))
    def take(self, most: int) -> None:
        """As the intake does it."""
        offsets = [offset for offset in self.log if offset >= self.next][:most]
        if not offsets:
            self.partition.ledger.advance_end(self.end)
        elif self.partition not in self.flow.paused:
            self.deliver(offsets)

    def deliver(self, offsets: list[int]) -> None:
        fit = self.partition.ledger.count_fitting(offsets)
        if fit < len(offsets):
            self.flow.crowd(self.partition, offsets[fit])
        offsets = offsets[:fit]
        assert fit or self.in_hand, "nobody is in hand, and nobody may come"
        if not offsets:
            return
        known = self.partition.ledger.deliver_run(offsets)
        assert known is not None
        assert self.done.issuperset(known), "skipped, and never done"
        fresh = [offset for offset in offsets if offset not in known]
        assert self.named.isdisjoint(fresh), "run again, though the group knew it was done"
        self.in_hand += fresh
        self.next = offsets[-1] + 1

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def end_some(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.in_hand), min_size=1, unique=True))
        self.settle(chosen)

    @precondition(lambda self: len(self.in_hand) > 1)
    @rule()
    def end_all_but_the_first(self) -> None:
        self.settle(sorted(self.in_hand)[1:])

    def settle(self, chosen: list[int]) -> None:
        ahead = self.partition.committed_after(set(chosen))
        self.partition.ledger.settle(chosen)
        self.done.update(chosen)
        self.ended.update(chosen)
        self.in_hand = [offset for offset in self.in_hand if offset not in chosen]
        assert ahead is not None
        assert self.named_by(ahead) == self.named_by(self.held())
        assert same_topic(ahead, ORIGIN)

    @rule()
    def commit(self) -> None:
        self.group = self.held()
        self.named = self.named_by(self.group)
        assert self.done.issuperset(self.named), "committed before its end"
        assert self.named == self.ended, "done, and not told"

    @rule()
    def die(self) -> None:
        """And somebody else begins."""
        self.live()

    @rule(waited_s=st.sampled_from([0.01, 10.0]))
    def adjust_flow(self, waited_s: float) -> None:
        self.now += waited_s
        self.flow.paused = self.flow.to_pause([self.partition], self.now)

    # -- what holds -------------------------------------------------------------------

    def held(self) -> Committed:
        held = self.partition.committed()
        assert held is not None
        return held

    def named_by(self, held: Committed) -> set[int]:
        runs = decode(held.metadata, ORIGIN, held.position)
        assert not isinstance(runs, Ignored)
        below = {offset for offset in self.log if offset < held.position}
        return below.union(o for o in self.log if any(begin <= o < end for begin, end in runs))

    @invariant()
    def the_map_fits_whatever_was_delivered(self) -> None:
        """It raises if it does not."""
        self.partition.committed()

    @invariant()
    def the_runs_are_as_few_as_they_can_be(self) -> None:
        runs = self.partition.ledger.position_after()[1]
        assert all(one[1] < other[0] for one, other in pairwise(runs))

    def teardown(self) -> None:
        """In the end everything is done, whoever was crowded before."""
        for _ in range(3 * len(self.log) + 3):
            self.take(40)
            self.settle(list(self.in_hand))
            self.adjust_flow(1.0)
        assert self.done == set(self.log)
        assert self.held() == Committed(self.end, encode(ORIGIN, self.end, []))
        self.patch.undo()


TestDoneStaysDone = DoneStaysDone.TestCase
TestDoneStaysDone.settings = settings(max_examples=150, stateful_step_count=50)
