"""Lanes while partitions come and go: they belong to the source, not to an assignment."""

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kworker.core.headers import Envelope, Source
from kworker.core.lanes import Lanes
from kworker.core.record import Partition, Record
from kworker.worker.orphans import OrphanedRuns
from tests.support.orphans import leave, meet
from tests.support.records import a_partition, a_record

At = tuple[str, int]
Lane = tuple[str, int, bytes | None]

REQUEUE = "orders.requeue"
PLACES: list[At] = [("orders", 0), ("orders", 1), (REQUEUE, 0), (REQUEUE, 1)]
KEYS = st.sampled_from([None, b"a", b"b"])


def retried(requeue: Partition, offset: int, source: Source, key: bytes | None) -> Record:
    """A record of the source that comes again by the requeue topic."""
    record = a_record(requeue, offset, lane=key, key=key)
    record.comes_again(Envelope(source, 2, 0, 0, []), 0)
    return record


class Rebalances(RuleBasedStateMachine):
    """Two source partitions and two of the requeue topic, each opened and closed by itself.

    What is read of a closed partition and has not ended is read again when it is opened, and
    a handler that runs on meanwhile is taken up, as `Dispatch` does it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes("key")
        self.orphans = OrphanedRuns(keeps=True)
        self.open: dict[At, Partition] = {}
        # By partition: offset, key and source of what has not ended.
        self.log: dict[At, dict[int, tuple[bytes | None, Source]]] = {at: {} for at in PLACES}
        self.offsets = count()
        self.arrived: dict[Lane, list[Record]] = {}  # of open partitions, in order, not ended
        self.running: list[Record] = []
        self.now = 0.0

    # -- as the poll thread does it ---------------------------------------------------

    def deliver(self, at: At, offset: int) -> None:
        partition = self.open[at]
        key, source = self.log[at][offset]
        if at[0] == REQUEUE:
            record = retried(partition, offset, source, key)
            self.lanes.add_again(record)
        else:
            record = a_record(partition, offset, lane=key, key=key)
            self.lanes.add(partition, [record])
        self.arrived.setdefault(lane_of(record), []).append(record)

    def begin(self, record: Record) -> None:
        run = meet(self.orphans, record)
        if run is record:
            key = record.raw.key()
            assert key is None or self.arrived[lane_of(record)][0] is record, "it overtook one"
            self.running.append(record)
        elif run is not None:
            self.stands_for(run)
            self.end(run)

    def stands_for(self, run: Record) -> None:
        there = self.arrived[lane_of(run)]
        [i] = [i for i, each in enumerate(there) if place(each) == place(run)]
        there[i] = run

    def end(self, record: Record) -> None:
        self.lanes.finish([record])
        self.arrived[lane_of(record)].remove(record)
        at, offset = place(record)
        del self.log[at][offset]  # once only, or this raises

    # -- what may happen --------------------------------------------------------------

    @rule(at=st.sampled_from(PLACES))
    def opens(self, at: At) -> None:
        if at in self.open:
            return
        partition = self.open[at] = a_partition(at[0], at[1])
        partition.origin = b"log"
        self.lanes.open(partition)
        self.orphans.returned(self.open.values())
        for offset in sorted(self.log[at]):
            self.deliver(at, offset)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def closes(self, data: st.DataObject) -> None:
        partition = self.open.pop(data.draw(st.sampled_from(list(self.open))))
        partition.open = False
        going = [record for record in self.running if record.partition is partition]
        self.lanes.put_back(self.orphans.withdraw([partition]))
        leave(self.orphans, partition, going)
        self.lanes.close(partition)
        for there in self.arrived.values():
            there[:] = [record for record in there if record.partition is not partition]

    @precondition(lambda self: self.open)
    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=3))
    def adds(self, data: st.DataObject, keys: list[bytes | None]) -> None:
        at = data.draw(st.sampled_from(list(self.open)))
        for key in keys:
            offset = next(self.offsets)
            number = data.draw(st.integers(0, 1)) if at[0] == REQUEUE else at[1]
            self.log[at][offset] = key, Source("orders", number, offset, 0)
            self.deliver(at, offset)

    @rule(most=st.integers(1, 4))
    def takes(self, most: int) -> None:
        for record in self.lanes.take(most):
            self.begin(record)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        self.finish(data.draw(st.sampled_from(self.running)))

    def finish(self, record: Record) -> None:
        self.running.remove(record)
        if record.partition.open:
            self.end(record)
            return
        ends = self.orphans.ended([record])
        self.lanes.put_back(ends.freed)
        for run in ends.adopted:
            self.stands_for(run)
            self.end(run)

    @precondition(lambda self: any(record.partition.open for record in self.running))
    @rule(data=st.data(), held=st.booleans())
    def parks(self, data: st.DataObject, held: bool) -> None:
        record = data.draw(st.sampled_from([r for r in self.running if r.partition.open]))
        self.running.remove(record)
        if held:
            self.lanes.hold(record, self.now + 2)
        else:
            self.lanes.park(record, self.now + 1)

    @rule()
    def wakes(self) -> None:
        self.now += 1
        self.lanes.wake(self.now)

    # -- what holds -------------------------------------------------------------------

    @invariant()
    def no_two_of_a_key_run_at_once(self) -> None:
        keyed = [lane_of(record) for record in self.running if record.raw.key() is not None]
        assert len(set(keyed)) == len(keyed)

    def teardown(self) -> None:
        """All ends, when all is open, and each once."""
        for at in PLACES:
            self.opens(at)
        while any(self.log.values()):
            before = sum(map(len, self.log.values()))
            self.lanes.wake(float("inf"))
            for record in self.lanes.take(1_000):
                self.begin(record)
            while self.running:
                self.finish(self.running[0])
            assert self.lanes.ready or sum(map(len, self.log.values())) < before, "it stands still"


def lane_of(record: Record) -> Lane:
    return record.source.topic, record.source.partition, record.raw.key()


def place(record: Record) -> tuple[At, int]:
    return (record.partition.topic, record.partition.number), record.offset


TestRebalances = Rebalances.TestCase
TestRebalances.settings = settings(max_examples=200, stateful_step_count=40)


def two_retries() -> tuple[Lanes, Partition, list[Record]]:
    """Of one key, whose source is here; the first of them is out."""
    lanes, source, requeue = Lanes("key"), a_partition(), a_partition(REQUEUE)
    lanes.open(source)
    lanes.open(requeue)
    records = [retried(requeue, i, Source("orders", 0, 10 + i, 0), b"k") for i in range(2)]
    for record in records:
        lanes.add_again(record)
    assert list(lanes.take(10)) == records[:1]
    return lanes, source, records


@pytest.mark.parametrize("parked", [False, True])
def test_a_source_that_goes_frees_no_retry_of_its_keys(parked: bool) -> None:
    """KIP-848: one partition goes and the requeue stays; two retries of a key ran at once."""
    lanes, source, [first, second] = two_retries()
    if parked:
        lanes.park(first, 1.0)
    lanes.close(source)
    assert not lanes.ready
    lanes.wake(1.0)
    assert list(lanes.take(10)) == ([first] if parked else [])
    lanes.finish([first])
    assert list(lanes.take(10)) == [second]


def test_a_source_that_returns_finds_its_lane_held() -> None:
    lanes, source, [first, second] = two_retries()
    lanes.close(source)
    back = a_partition()
    lanes.open(back)
    third = a_record(back, 20, lane=b"k", key=b"k")
    lanes.add(back, [third])
    for record, following in ((first, second), (second, third)):
        assert not lanes.ready
        lanes.finish([record])
        assert list(lanes.take(10)) == [following]


def test_a_record_behind_a_held_one_is_told_when_that_goes() -> None:
    """It is counted as held, and must be counted as in flight before it runs."""
    lanes, source, [first, _] = two_retries()
    lanes.finish([first])
    lanes.finish(lanes.take(10))
    before = a_record(source, 1, lane=b"k", key=b"k")
    lanes.add(source, [before])
    behind = retried(first.partition, 5, Source("orders", 0, 15, 0), b"k")
    lanes.take(10)
    lanes.hold(before, 9.0)
    lanes.add_again(behind)
    assert lanes.held_back([behind]) == [behind]
    assert lanes.close(source) == ([before], [behind])
    assert lanes.held_back([behind]) == []
    assert list(lanes.take(10)) == [behind]
