"""Lanes against a model: order of each key, one at a time, nothing lost and nothing twice."""

import gc
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kworker.core.chunk import Row
from kworker.core.lanes import Lanes
from kworker.core.record import Partition, Record
from kworker.core.record_groups import edges
from tests.support.records import a_chunk, a_partition, a_record

KEYS = st.sampled_from([None, b"", b"a", b"b", b"c"])


class LanesAgainstModel(RuleBasedStateMachine):
    """Records of three partitions, taken and given back in every way there is."""

    ordering = "key"

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes(self.ordering)  # type: ignore[arg-type]
        self.now = 100.0
        self.next_offset = 0
        self.partitions = [a_partition(number=n) for n in range(3)]
        self.unfinished: list[Record] = []  # in the order of delivery
        self.out: list[Record] = []  # in the order in which they were taken
        self.parked: dict[Record, float] = {}
        self.ended: Counter[Record] = Counter()

    def ahead(self, record: Record) -> list[Record]:
        """What has to end before the record may run."""
        if record.lane is None:
            return []
        lane = [r for r in self.unfinished if same_lane(r, record)]
        return lane[: lane.index(record)]

    def ready(self) -> list[Record]:
        held = [*self.out, *self.parked]
        return [r for r in self.unfinished if r not in held and not self.ahead(r)]

    @precondition(lambda self: self.partitions)
    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=5))
    def add(self, data: st.DataObject, keys: list[bytes | None]) -> None:
        partition = data.draw(st.sampled_from(self.partitions))
        records = []
        for key, lane in zip(keys, self.lanes.lanes_of(keys), strict=True):
            records.append(a_record(partition, self.next_offset, lane=lane, key=key))
            self.next_offset += 1
        self.lanes.add(partition, records)
        self.unfinished += records

    @rule(most=st.integers(1, 6))
    def take(self, most: int) -> None:
        """Only what may run, and so never two of a lane."""
        may = self.ready()
        run = list(self.lanes.take(most))
        assert len(run) == min(most, len(may))
        assert all(record in may for record in run)
        assert len(set(run)) == len(run)
        self.out += run

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        records = data.draw(st.lists(st.sampled_from(self.out), min_size=1, unique=True))
        self.lanes.finish(records)
        for record in records:
            self.out.remove(record)
            self.unfinished.remove(record)
            self.ended[record] += 1

    @precondition(lambda self: self.out)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 1.0, 5.0]))
    def park(self, data: st.DataObject, delay: float) -> None:
        record = data.draw(st.sampled_from(self.out))
        self.out.remove(record)
        self.parked[record] = self.now + delay
        self.lanes.park(record, self.now + delay)

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0]))
    def wake(self, seconds: float) -> None:
        self.now += seconds
        self.lanes.wake(self.now)
        self.parked = {r: due for r, due in self.parked.items() if due > self.now}

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """What did not start comes before what has not been taken yet of its partition."""
        count = data.draw(st.integers(1, len(self.out)))
        back, self.out = self.out[-count:], self.out[:-count]
        self.lanes.put_back(back)
        again = list(self.lanes.take(1_000_000))
        for partition in {record.partition for record in back}:
            mine = [record for record in back if record.partition is partition]
            assert [r for r in again if r.partition is partition][: len(mine)] == mine
        self.lanes.put_back(again)

    @precondition(lambda self: self.partitions)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(self.partitions))
        self.partitions.remove(partition)  # nothing is added to it any more
        going = [r for r in self.unfinished if r.partition is partition and r not in self.out]
        dropped = self.lanes.drop(partition).records
        assert Counter(dropped) == Counter(going)
        self.unfinished = [r for r in self.unfinished if r not in going]
        self.parked = {r: due for r, due in self.parked.items() if r not in going}

    @invariant()
    def counts_are_right(self) -> None:
        assert self.lanes.ready == bool(self.ready())
        assert self.lanes.parked == len(self.parked)
        assert self.lanes.next_due() == min(self.parked.values(), default=None)

    @invariant()
    def no_lane_has_two_out(self) -> None:
        lanes = Counter((id(r.partition), r.lane) for r in self.out if r.lane is not None)
        assert all(count == 1 for count in lanes.values())

    def teardown(self) -> None:
        """Whatever happened, the rest ends, each record once and every key in order."""
        self.lanes.wake(float("inf"))
        ends: list[Record] = []
        while run := [*self.out, *self.lanes.take(3)]:
            self.out = []
            self.lanes.finish(run)
            ends += run
        assert Counter(ends) == Counter(self.unfinished)
        for lane in {(id(r.partition), r.lane) for r in ends if r.lane is not None}:
            offsets = [r.offset for r in ends if (id(r.partition), r.lane) == lane]
            assert offsets == sorted(offsets)


def same_lane(one: Record, other: Record) -> bool:
    return one.partition is other.partition and one.lane == other.lane


class ByPartition(LanesAgainstModel):
    ordering = "partition"


class Unordered(LanesAgainstModel):
    ordering = "none"


class InRows(LanesAgainstModel):
    """Later records of a lane are taken with its first, to run one after the other."""

    @rule(most=st.integers(2, 6))
    def take_in_rows(self, most: int) -> None:
        """A row goes on where its lane does, and is no longer than was asked for."""
        taken = self.lanes.take(most)
        if not 0 < len(taken) < most:
            self.out += taken
            return
        may = [r for r in self.unfinished if r not in (*self.out, *self.parked, *taken)]
        row = list(self.lanes.take_behind(taken, most - len(taken)))
        assert [record for record in row if record in taken] == list(taken)
        assert len(row) <= most
        assert Counter(row) <= Counter([*taken, *may])
        for before, record in pairwise(row):
            assert record in taken or self.ahead(record)[-1] is before
        self.out += row

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """With a record, all before it in its lane have ended, unless they are not even out."""
        last = data.draw(st.sampled_from(self.out))
        before = self.ahead(last)
        if set(before) <= set(self.out):
            self._finish([*before, last])

    def _finish(self, records: list[Record]) -> None:
        self.lanes.finish(records)
        for record in records:
            self.out.remove(record)
            self.unfinished.remove(record)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 1.0, 5.0]))
    def park(self, data: st.DataObject, delay: float) -> None:
        """Only what is at the head of its lane has run; what is behind it comes back later."""
        record = data.draw(st.sampled_from(self.out))
        if not self.ahead(record):
            self.out.remove(record)
            self.parked[record] = self.now + delay
            self.lanes.park(record, self.now + delay)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """Any of a row may come back before the others do."""
        back = data.draw(st.lists(st.sampled_from(self.out), min_size=1, unique=True))
        self.out = [record for record in self.out if record not in back]
        self.lanes.put_back(back)

    @precondition(lambda self: self.partitions)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """What is out goes on, and in no lane; when it ends, it frees none."""
        partition = data.draw(st.sampled_from(self.partitions))
        self.partitions.remove(partition)
        mine = [record for record in self.unfinished if record.partition is partition]
        running = [record for record in mine if record in self.out]
        dropped = self.lanes.close(partition).records
        assert Counter([*dropped, *running]) == Counter(mine)
        self.lanes.finish(running)
        self.unfinished = [record for record in self.unfinished if record not in mine]
        self.out = [record for record in self.out if record not in mine]
        self.parked = {r: due for r, due in self.parked.items() if r not in mine}

    @invariant()
    def no_lane_has_two_out(self) -> None:
        """Here it may; nothing else is kept of what was taken ahead."""
        assert self.lanes._ahead <= set(self.out)

    def teardown(self) -> None:
        """What is behind a record that came back has not run either."""
        back = [record for record in self.out if not set(self.ahead(record)) <= set(self.out)]
        self.lanes.put_back(back)
        self.out = sorted(set(self.out) - set(back), key=self.unfinished.index)
        super().teardown()


class Merged(InRows):
    """The lanes of each partition are merged and split, whatever is out."""

    def __init__(self) -> None:
        super().__init__()
        for partition in self.partitions:
            self.lanes.open(partition)

    @rule()
    def merge(self) -> None:
        """Soon after a split they are not merged yet."""
        self.lanes.set_merged(True, self.now)
        self.wake(1.0)
        self.lanes.set_merged(True, self.now)

    @rule()
    def split(self) -> None:
        self.lanes.set_merged(False, self.now)

    @rule(most=st.integers(1, 6))
    def take(self, most: int) -> None:
        """Of each lane what comes next, and only if all before it is in the same run."""
        taken = self.lanes.take(most)
        merged = self.lanes.merged
        assert (type(taken) is Row) is merged
        assert len(taken) <= most
        if merged and taken:
            assert not {record.partition for record in taken} & self.busy()
            partitions = [record.partition for record in taken]
            assert len(edges(partitions)) == len(set(partitions))
        for number, record in enumerate(taken):
            assert record not in (*self.out, *self.parked)
            assert set(self.ahead(record)) <= set(list(taken)[:number])
        self.out += taken

    @rule(most=st.integers(2, 6))
    def take_in_rows(self, most: int) -> None:
        if self.lanes.merged:
            self.take(most)
        else:
            super().take_in_rows(most)

    def busy(self) -> set[Partition]:
        return {record.partition for record in self.out if record.lane is not None}

    @invariant()
    def counts_are_right(self) -> None:
        """What may run is ready; while lanes are merged, only in a partition with nothing out."""
        ready = self.ready()
        if self.lanes.merged:
            out = {record.partition for record in self.out}
            ready = [record for record in ready if record.partition not in out]
            assert not self.parked
            assert not ready or self.lanes.ready
        else:
            assert self.lanes.ready == bool(ready)
        assert self.lanes.parked == len(self.parked)


TestByKey = LanesAgainstModel.TestCase
TestInRows = InRows.TestCase
TestMerged = Merged.TestCase
TestByPartition = ByPartition.TestCase
TestUnordered = Unordered.TestCase
TestByKey.settings = settings(max_examples=60, stateful_step_count=30)
TestInRows.settings = settings(TestByKey.settings, max_examples=150)
TestMerged.settings = settings(TestByKey.settings, max_examples=400)
TestByPartition.settings = TestUnordered.settings = settings(TestByKey.settings, max_examples=25)


def filled(ordering: str, keys: list[bytes | None]) -> tuple[Lanes, Partition, list[Record]]:
    lanes, partition = Lanes(ordering), a_partition()  # type: ignore[arg-type]
    records = [a_record(partition, i, lane=lane) for i, lane in enumerate(lanes.lanes_of(keys))]
    lanes.add(partition, records)
    return lanes, partition, records


def test_a_null_key_is_no_key() -> None:
    """Records without a key have no order, so all of them may run at once."""
    lanes, _, records = filled("key", [None, None, None])
    assert list(lanes.take(10)) == records


def test_an_empty_key_is_a_key() -> None:
    lanes, _, records = filled("key", [b"", b""])
    assert list(lanes.take(10)) == records[:1]


@pytest.mark.parametrize(("ordering", "ready"), [("key", 2), ("partition", 1), ("none", 4)])
def test_the_ordering_decides_what_may_run_together(ordering: str, ready: int) -> None:
    lanes, _, _ = filled(ordering, [b"a", b"a", b"b", b"b"])
    assert len(lanes.take(10)) == ready


def test_the_same_key_of_two_partitions_is_two_lanes() -> None:
    lanes = Lanes("key")
    for number in (0, 1):
        partition = a_partition(number=number)
        lanes.add(partition, [a_record(partition, 0, lane=b"a")])
    assert len(lanes.take(10)) == 2


def test_one_busy_partition_does_not_keep_others_waiting() -> None:
    """Else a partition that was just assigned is served when all of another has been."""
    lanes, early, late = Lanes("key"), a_partition(number=0), a_partition(number=1)
    lanes.add(early, [a_record(early, i, lane=i) for i in range(100)])
    lanes.add(late, [a_record(late, i, lane=i) for i in range(2)])
    taken = [record for _ in range(4) for record in lanes.take(1)]
    assert [(r.partition.number, r.offset) for r in taken] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    lanes.put_back(taken[:2])
    assert [r.partition.number for r in lanes.take(50)].count(1) == 1


def test_two_keys_never_share_a_lane() -> None:
    """A lane is one key, never a hash bucket: a slow key delays no other."""
    keys: list[bytes | None] = [b"%d" % i for i in range(5000)]
    lanes, _, records = filled("key", keys)
    assert list(lanes.take(5000)) == records


def with_chunks(*numbers: int) -> tuple[Lanes, Partition]:
    """Merged lanes of a partition with chunks of so many records."""
    lanes, partition, begin = Lanes("key"), a_partition(), 0
    lanes.open(partition)
    lanes.set_merged(True, 0.0)
    for number in numbers:
        lanes.add_chunk(a_chunk(partition, begin, number))
        begin += number
    return lanes, partition


def offsets(records: Iterable[Record]) -> list[int]:
    return [record.offset for record in records]


def test_a_partition_with_a_chunk_out_is_not_taken_from() -> None:
    lanes, _ = with_chunks(2, 2, 2)
    row = lanes.take_chunks(3)
    assert row is not None
    assert [len(chunk) for chunk in row.chunks] == [2, 2]
    assert not lanes.ready
    for chunk in row.chunks:
        assert not lanes.ready
        list(chunk.unbegun)
        chunk.finish()
        lanes.chunk_over(chunk)
        assert not row.broken, "the rest of it may still run as it is"
    assert lanes.ready


def test_single_records_run_before_the_chunks_behind_them() -> None:
    """And after those before them, which are broken up then."""
    lanes, partition = with_chunks()
    first = a_record(partition, 0, lane=b"0")
    lanes.add(partition, [first])
    lanes.add_chunk(a_chunk(partition, 1, 2))
    assert lanes.take_chunks(9) is None
    assert list(lanes.take(9)) == [first]
    lanes.finish([first])
    lanes.add(partition, [a_record(partition, 3, lane=b"0")])
    assert lanes.take_chunks(9) is None
    assert offsets(lanes.take(9)) == [1, 2, 3]


def test_a_turn_of_single_records_passes_over_chunks() -> None:
    lanes, one = with_chunks(2)
    other = a_partition(number=1)
    lanes.open(other)
    lanes.add(other, [a_record(other, 0, lane=b"0")])
    row = lanes.take_chunks(9)
    assert row is not None
    assert {chunk.partition for chunk in row.chunks} == {one}
    assert [record.partition for record in lanes.take(9)] == [other]


@pytest.mark.parametrize("begun", [0, 1, 3])
def test_lanes_that_are_split_have_the_records_of_chunks(begun: int) -> None:
    lanes, partition = with_chunks(4, 2)
    row = lanes.take_chunks(4)
    assert row is not None
    [chunk] = row.chunks
    for _ in range(begun):
        next(chunk.unbegun)
    lanes.set_merged(False, 0.0)
    last = chunk.finish()
    assert not lanes.take(9), "all lanes are still out"
    lanes.finish([last] if last else [])
    back = list(row.waiting)
    lanes.put_back(back)
    run: list[int] = []
    while lanes.ready:
        taken = lanes.take(9)
        run += offsets(taken)
        lanes.finish(list(taken))
    assert sorted(run) == list(range(begun, 6))
    assert [offset for offset in run if offset % 2] == [n for n in range(begun, 6) if n % 2]
    assert not partition.lanes.busy


@pytest.mark.parametrize("closes", [False, True])
def test_a_partition_that_goes_takes_its_chunks_along(closes: bool) -> None:
    lanes, partition = with_chunks(4, 2)
    row = lanes.take_chunks(4)
    assert row is not None
    next(row.chunks[0].unbegun)
    dropped = (lanes.close if closes else lanes.drop)(partition).records
    assert offsets(dropped) == [4, 5]
    assert offsets(row.waiting) == [1, 2, 3]
    assert not lanes.ready


def test_a_parked_record_keeps_its_lane_and_no_other() -> None:
    lanes, _, records = filled("key", [b"a", b"a", b"b"])
    first = lanes.take(1)[0]
    lanes.park(first, 5.0)
    lanes.wake(4.9)
    assert list(lanes.take(10)) == [records[2]]
    lanes.wake(5.0)
    assert list(lanes.take(10)) == [first]


def test_a_drop_takes_what_waits_behind_what_is_out() -> None:
    """What has begun goes on; nothing else of its partition begins."""
    lanes, partition, records = filled("key", [b"a", b"b", b"a", b"c"])
    begun = lanes.take(2)
    lanes.put_back([begun[1]])
    assert lanes.drop(partition).records == [records[1], records[3], records[2]]
    lanes.finish([begun[0]])
    assert not lanes.ready


def test_a_drop_takes_parked_records_and_what_waits_behind_them() -> None:
    lanes, partition, records = filled("key", [b"a", b"a"])
    lanes.park(lanes.take(1)[0], 5.0)
    assert set(lanes.drop(partition).records) == set(records)
    assert lanes.next_due() is None


def test_a_kept_record_does_not_pin_its_followers() -> None:
    """A dead letter that its topic refuses may wait for weeks, beside all others of its key."""
    lanes, partition, records = filled("key", [b"a", b"a", b"a"])
    kept, *records = records
    (first,) = lanes.take(1)
    assert first is kept
    lanes.finish([kept])
    for offset in range(3, 50):
        lanes.add(partition, [a_record(partition, offset, lane=b"a")])
        lanes.finish(lanes.take(1))
    reached, news = {id(kept)}, [kept]
    while news:
        news = [r for r in gc.get_referents(*news) if type(r) is Record and id(r) not in reached]
        reached.update(map(id, news))
    assert len(reached) == 1
