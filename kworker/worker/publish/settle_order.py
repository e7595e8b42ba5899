"""Settling at least once: the records of one key settle in their order."""

from collections.abc import Iterable, Sequence

from kworker.core.chunk import ChunkPart
from kworker.core.record import Partition, Record
from kworker.core.record_groups import by_partition
from kworker.worker.publish.result_block import ResultBlock

_Lane = tuple[Partition, object]


class SettleOrder:
    """Settles no record before an earlier one of its key. Owned by the poll thread.

    Otherwise a commit could name the later record as done, and not the earlier one. When the
    partition then gets another owner, only the earlier record runs again, and what it writes
    replaces what the later one wrote.
    """

    def __init__(self) -> None:
        # Not settled, while Kafka may have later ones; with their lanes, which they may lose.
        self._late: dict[Record, _Lane] = {}
        self._behind: dict[_Lane, list[int]] = {}  # the offsets of records whose outputs Kafka has

    def overtaken(self, records: Iterable[Record]) -> None:
        """Notes that outputs of later records may get into Kafka before those of these records."""
        for record in records:
            if record.lane is not None and record.partition.open:
                self._late.setdefault(record, (record.partition, record.lane))

    def settle(self, records: list[Record]) -> None:
        """Settles records whose outputs are durable, but none before an earlier one of its key.

        A record that waits for an earlier one is settled by the call that settles the earlier one.
        """
        if not self._late:
            settle(records)
            return
        lanes = [self._late.pop(record, (record.partition, record.lane)) for record in records]
        firsts, due = self._firsts(), []
        for record, lane in zip(records, lanes, strict=True):
            if record.offset < firsts.get(lane, record.offset + 1):
                due.append(record)
            else:
                self._behind.setdefault(lane, []).append(record.offset)
        settle(due)
        self._release(firsts)

    def settle_parts(self, parts: Sequence[ChunkPart | ResultBlock]) -> None:
        """Does what `settle` does, for the records of parts of chunks."""
        if self._late:
            self.settle([record for part in parts for record in part.records()])
        else:
            settle_parts(parts)

    def forget(self, partition: Partition) -> None:
        """Forgets the records of a partition that this worker owns no more."""
        self._late = {r: lane for r, lane in self._late.items() if r.partition is not partition}
        self._behind = {at: done for at, done in self._behind.items() if at[0] is not partition}

    def _firsts(self) -> dict[_Lane, int]:
        """Returns the offset of the first late record of each lane.

        A late record is not settled, although outputs of later records may be in Kafka.
        """
        firsts: dict[_Lane, int] = {}
        for record, lane in self._late.items():
            firsts[lane] = min(record.offset, firsts.get(lane, record.offset))
        return firsts

    def _release(self, firsts: dict[_Lane, int]) -> None:
        """Settles those records in `_behind` that no longer have a late record before them."""
        for lane, offsets in list(self._behind.items()):
            first = firsts.get(lane, max(offsets) + 1)
            lane[0].settle([offset for offset in offsets if offset < first])
            self._behind[lane] = [offset for offset in offsets if offset > first]
            if not self._behind[lane]:
                del self._behind[lane]


def settle(records: Sequence[Record]) -> None:
    """Notes in the ledgers of their partitions that all outputs of these records are durable."""
    for partition, own in by_partition(records):
        partition.settle([record.offset for record in own])


def settle_parts(parts: Sequence[ChunkPart | ResultBlock]) -> None:
    """Does what `settle` does, for the records of parts of chunks."""
    for part in parts:
        part.partition.settle(part.offsets)
