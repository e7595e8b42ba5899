"""Records of one key settle in their order, whatever Kafka takes first."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kworker.core.record import Partition, Record
from kworker.worker.publish.settle_order import SettleOrder
from tests.support.records import a_partition, a_record

LANES = st.lists(st.sampled_from([None, b"a", b"b"]), min_size=1, max_size=12)


def records_of(partition: Partition, lanes: Sequence[object]) -> list[Record]:
    records = [a_record(partition, offset, lane=lane) for offset, lane in enumerate(lanes)]
    for record in records:
        partition.ledger.deliver(record.offset)
    return records


def settled(partition: Partition, count: int) -> list[int]:
    position, runs = partition.ledger.position_after()
    assert position is not None
    done = [(0, position), *runs]
    return [o for o in range(count) if any(begin <= o < end for begin, end in done)]


@given(LANES, st.data())
def test_nothing_settles_before_a_late_record_of_its_key(
    lanes: list[bytes | None], data: st.DataObject
) -> None:
    """What Kafka took out of turn waits; what waits for nobody settles at once."""
    partition = a_partition()
    records = records_of(partition, lanes)
    late = data.draw(st.sets(st.sampled_from(range(len(lanes)))))
    order = SettleOrder()
    order.overtaken([records[offset] for offset in sorted(late)])
    written: set[int] = set()
    for offset in data.draw(st.permutations(range(len(lanes)))):
        # An outcome that a topic refused for good has lost its lane when its dead letter is there.
        if offset in late and data.draw(st.booleans()):
            records[offset].lane = None
        order.settle([records[offset]])
        written.add(offset)
        assert settled(partition, len(lanes)) == [
            each
            for each in sorted(written)
            if lanes[each] is None
            or all(o in written for o in late if o < each and lanes[o] == lanes[each])
        ]
    assert partition.ledger.position == partition.settled == len(lanes)


def test_late_records_of_one_batch_settle_together() -> None:
    """A last commit may follow at once."""
    partition = a_partition()
    records = records_of(partition, [b"a", b"a", b"a"])
    order = SettleOrder()
    order.overtaken(records[:2])
    order.settle(records[2:])
    assert settled(partition, 3) == []
    order.settle([records[1], records[0]])
    assert settled(partition, 3) == [0, 1, 2]


def test_a_lost_partition_leaves_nothing_behind() -> None:
    """Its records come again, here or elsewhere."""
    lost, kept = a_partition(), a_partition(number=1)
    late, behind = records_of(lost, [b"a", b"a"])
    other, follower = records_of(kept, [b"a", b"a"])
    order = SettleOrder()
    order.overtaken([late, other])
    order.settle([behind, follower])
    lost.open = False
    order.forget(lost)
    order.overtaken([late])
    order.settle([late, other])
    assert settled(kept, 2) == [0, 1]
    assert settled(lost, 2) == [0]
