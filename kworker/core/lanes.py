"""The order of records. A lane is one key (or one partition), never a hash bucket.

Over 300 lines, since one file has every way in which a record enters and leaves its lane.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Literal, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from kworker.core import merged_lanes
from kworker.core.chunk import Chunk, ChunkRow
from kworker.core.record import Partition, PartitionLanes, Record, follow, followers
from kworker.core.record_groups import Groups, by_partition

Ordering = Literal["key", "partition", "none"]
_WHOLE_PARTITION = True
_MERGE_AFTER_S = 1.0  # since lanes were split


class Dropped(NamedTuple):
    """The records that were dropped with a partition.

    `unheld` has records of other partitions that are held no more: each counted as held because it
    waited behind a held record, which was dropped.
    """

    records: list[Record]
    unheld: list[Record]  # waited behind a held record that was dropped


class Lanes:
    """The lanes of one worker, in which records wait for a handler. Owned by the poll thread.

    A lane is the queue of one key in one source partition, or of the whole partition with `ordering
    = "partition"`. One record of a lane is out (taken, and not yet finished) at a time, so taken
    records can run side by side; `take_behind` takes further ones ahead of their turn, to run one
    after the other. A parked record waits until it is due, and blocks its lane.
    Partitions are served in turn, so that the backlog of one does not delay the others. Lanes
    outlive assignments: see `PartitionLanes`.

    While one thread is enough for all handlers, the lanes of each partition may be merged: its
    records run in the order of delivery, which keeps that of each key. That is 1.26 times as fast
    for handlers that do nothing. Lanes are split again before anything but `add`, `take` and
    `finish` happens to a record.
    """

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._turn: deque[PartitionLanes] = deque()  # those with something ready
        self._parked: list[tuple[float, int, Record]] = []
        self._turns = count()
        self._ahead: set[Record] = set()  # taken before the earlier records of their lanes ended
        self._holding: set[tuple[PartitionLanes, object]] = set()  # lanes behind a held record
        self._all: WeakValueDictionary[tuple[str, int], PartitionLanes] = WeakValueDictionary()
        # Where records of a partition run that are not its own: those of a requeue partition.
        self._guests: dict[Partition, WeakSet[PartitionLanes]] = {}
        self.chunked = False  # whether merged lanes get new records in chunks
        self.merged = False  # see `set_merged`
        self._merge_at: float | None = 0.0  # None: lanes were split just now

    @property
    def ready(self) -> bool:
        """True if at least one record may run now."""
        return bool(self._turn)

    @property
    def parked(self) -> int:
        return len(self._parked)

    def open(self, partition: Partition) -> None:
        """Gives a partition back the lanes that it had in an earlier assignment, if they exist.

        Called before `add`.
        """
        at = (partition.topic, partition.number)
        partition.lanes = self._all.setdefault(at, partition.lanes)

    def set_merged(self, wanted: bool, now: float) -> None:
        """Merges the lanes of each partition, or splits them, if they are not as wanted.

        Does not merge lanes that were split in the last second, or while a record is parked.
        """
        if not wanted:
            self._split()
        elif not (self.merged or self._ordering == "none" or self._parked or self._holding):
            if self._merge_at is None:
                self._merge_at = now + _MERGE_AFTER_S
            if now < self._merge_at:
                return
            if self._may_be_merged():
                self._merge()
            else:
                self._merge_at = None

    def _may_be_merged(self) -> bool:
        """Returns False while a record is out, and an earlier one of its lane has come back."""
        if not self._ahead:
            return True
        for lanes in self._all.values():
            waits = set(lanes.ready)
            for holder in lanes.busy.values():
                are_out = [holder not in waits, *(r in self._ahead for r in followers(holder))]
                if are_out != sorted(are_out, reverse=True):
                    return False
        return True

    def _merge(self) -> None:
        self.merged = True
        for lanes in self._all.values():
            merged_lanes.merge(lanes, self._ahead)
        self._ahead.clear()
        self._turn = deque(each for each in self._all.values() if merged_lanes.may_be_taken(each))

    def _split(self) -> None:
        """Splits merged lanes; does nothing if they are split."""
        if not self.merged:
            return
        self.merged, self._merge_at = False, None
        for lanes in self._all.values():
            taken, waiting = merged_lanes.split(lanes)
            self._add(lanes, taken)
            firsts = set(lanes.ready)
            self._ahead.update(record for record in taken if record not in firsts)
            lanes.ready.clear()
            self._add(lanes, waiting)
        self._turn = deque(each for each in self._all.values() if each.ready)

    def lanes_of(self, keys: Sequence[bytes | None]) -> Sequence[object]:
        """Returns the lane of each key. A record whose lane is None runs in no particular order."""
        if self._ordering == "key":
            return keys
        return [_WHOLE_PARTITION if self._ordering == "partition" else None] * len(keys)

    def add(self, partition: Partition, records: Iterable[Record]) -> None:
        """Adds records of one partition, in the order in which they were delivered."""
        self._add(partition.lanes, records)

    @property
    def takes_chunks(self) -> bool:
        """True if new records are to be added by `add_chunk`. That needs merged lanes."""
        return self.merged and self.chunked

    def add_chunk(self, chunk: Chunk) -> None:
        """Adds records of one partition, in the order in which they were delivered."""
        lanes = chunk.partition.lanes
        waited = bool(lanes.ready or lanes.chunks)
        lanes.chunks.append(chunk)
        if not waited and merged_lanes.may_be_taken(lanes):
            self._turn.append(lanes)

    def chunk_over(self, chunk: Chunk) -> None:
        """Notes that all records of a taken chunk have ended, or that it was broken up.

        The records that are left of it are taken ones from then on.
        """
        lanes = chunk.partition.lanes
        if lanes.chunks_out:  # else lanes were split
            merged_lanes.settle_chunks(lanes)
            if merged_lanes.may_be_taken(lanes):
                self._turn.append(lanes)

    def add_again(self, record: Record) -> None:
        """Adds a record of the requeue topic to the lanes of its source partition."""
        source = record.source
        at = (source.topic, source.partition)
        if (lanes := self._all.get(at)) is None:
            lanes = self._all[at] = PartitionLanes(*at)
        record.source_lanes = lanes
        self._guests.setdefault(record.partition, WeakSet()).add(lanes)
        self._add(lanes, (record,))

    def _add(self, lanes: PartitionLanes, records: Iterable[Record]) -> None:
        if self.merged:
            waited = bool(lanes.ready or lanes.chunks)
            merged_lanes.add(lanes, records)
            if not waited and merged_lanes.may_be_taken(lanes):
                self._turn.append(lanes)
            return
        if not lanes.ready:
            self._turn.append(lanes)
        busy, ready = lanes.busy, lanes.ready.append
        for record in records:
            lane = record.lane
            if lane is None or (holder := busy.setdefault(lane, record)) is record:
                ready(record)
            else:
                last = holder if holder.follower is None else holder.last
                last.follower = holder.last = record
        if not lanes.ready:
            self._turn.pop()

    def take(self, most: int) -> deque[Record]:
        """Removes and returns up to `most` ready records, no two of the same lane.

        From merged lanes, returns a `Row`, of the partitions whose first records are single ones.
        """
        if self.merged:
            return merged_lanes.take_records(self._turn, most)
        turn = self._turn
        run: deque[Record] = deque()
        while turn and most > 0:
            share = max(1, most // len(turn))
            lanes = turn.popleft()
            ready = lanes.ready
            if share >= len(ready):
                most -= len(ready)
                run.extend(ready)
                ready.clear()
                continue
            most -= share
            turn.append(lanes)
            if share == 1:
                run.append(ready.popleft())
            else:
                run.extend([ready.popleft() for _ in range(share)])
        return run

    def take_chunks(self, most: int) -> ChunkRow | None:
        """Takes chunks of merged lanes, with `most` records or somewhat more.

        Returns None if it is the turn of a partition whose first records are single ones.
        """
        if not (self.merged and self._turn) or self._turn[0].ready:
            return None
        return merged_lanes.take_chunks(self._turn, most)

    def take_behind(self, taken: deque[Record], most: int) -> deque[Record]:
        """Takes up to `most` records that wait behind the `taken` ones; returns both.

        The records of one lane follow each other, in its order. Each may run only if the one before
        it has ended with results; otherwise it has to be put back.
        """
        if self.merged:
            return taken  # and what waits is behind others
        row: deque[Record] = deque()
        share = -(-most // len(taken))
        for first in taken:
            row.append(first)
            following, left = first.follower, min(share, most)
            while following is not None and left and following not in self._ahead:
                self._ahead.add(following)
                row.append(following)
                following, left, most = following.follower, left - 1, most - 1
        return row

    def put_back(self, records: Iterable[Record]) -> None:
        """Takes back records that were taken, and whose handlers were not started.

        They are ready again, in their old order.
        """
        back = list(records)
        if back:
            self._split()
        for record in reversed(back):
            if record in self._ahead:  # an earlier one of its lane is still out
                self._ahead.remove(record)
                continue
            lanes = record.source_lanes
            if not lanes.ready:
                self._turn.appendleft(lanes)
            lanes.ready.appendleft(record)

    def finish(self, records: Sequence[Record], groups: Groups | None = None) -> None:
        """Frees the lanes of records that have ended, so that the next record of each may run.

        Records of one lane must be given in its order. A record whose partition was closed
        meanwhile holds no lane, and is ignored. `groups` has the same records by partition, if the
        caller has grouped them.
        """
        if self.merged:
            for partition, own in by_partition(records) if groups is None else groups:
                self._turn += merged_lanes.finish(partition.lanes, own)
            return
        for record in records:
            lane = record.lane
            if lane is None:
                continue
            lanes = record.source_lanes
            if (holder := lanes.busy.pop(lane, None)) is not record:
                if holder is not None:
                    lanes.busy[lane] = holder
                continue
            if (following := record.follower) is None:
                continue
            if following.follower is not None:
                following.last = record.last
            # A record that is kept for long must not keep all that came after it.
            record.follower = None
            del record.last
            lanes.busy[lane] = following
            if self._ahead and following in self._ahead:
                self._ahead.remove(following)
                continue
            ready = lanes.ready
            # Older first: the oldest record is what holds back the commit.
            if not ready:
                self._turn.append(lanes)
                ready.append(following)
            elif following.taken_ns < ready[0].taken_ns:
                ready.appendleft(following)
            else:
                ready.append(following)

    def behind(self, record: Record) -> Sequence[Record]:
        """Returns, in order, the records that wait in a record's lane: all but the lane's first."""
        self._split()
        holder = None if record.lane is None else record.source_lanes.busy.get(record.lane)
        return () if holder is None else followers(holder)

    def park(self, record: Record, due: float) -> None:
        """Keeps a record from running until `due` (monotonic seconds). Its lane stays blocked."""
        self._split()
        heapq.heappush(self._parked, (due, next(self._turns), record))

    def hold(self, record: Record, due: float) -> list[Record]:
        """Parks a record; the later records of its lane count as held, too, until it is unparked.

        Returns the record and those that wait behind it.
        """
        self.park(record, due)
        if record.lane is not None:
            self._holding.add((record.source_lanes, record.lane))
        return [record, *self.behind(record)]

    def held_back(self, records: Iterable[Record]) -> list[Record]:
        """Returns those newly added records that wait behind a record which `hold` has parked."""
        if not self._holding:
            return []
        return [r for r in records if (r.source_lanes, r.lane) in self._holding]

    def wake(self, now: float) -> list[Record]:
        """Unparks the records that are due, and makes them ready to run; returns them."""
        woken = []
        while self._parked and self._parked[0][0] <= now:
            woken.append(heapq.heappop(self._parked)[2])
        self._hold_no_more(woken)
        self._ready(woken)
        return woken

    def pull(self, records: Iterable[Record]) -> list[Record]:
        """Unparks those of the records that are parked; returns them. Their lanes stay blocked."""
        wanted = {id(record) for record in records}
        found = sorted(entry for entry in self._parked if id(entry[2]) in wanted)
        if found:
            self._parked = [entry for entry in self._parked if id(entry[2]) not in wanted]
            heapq.heapify(self._parked)
        pulled = [entry[2] for entry in found]
        self._hold_no_more(pulled)
        return pulled

    def recall(self, records: Iterable[Record]) -> list[Record]:
        """Unparks those of the records that are parked, and makes them ready; returns them."""
        pulled = self.pull(records)
        self._ready(pulled)
        return pulled

    def all_parked(self) -> list[Record]:
        return [entry[2] for entry in self._parked]

    def next_due(self) -> float | None:
        return self._parked[0][0] if self._parked else None

    def drop(self, partition: Partition) -> Dropped:
        """Removes and returns a partition's records that are not running.

        They are ready to run, wait behind another record of their lane, or are parked (kept from
        running until they are due). Running records keep their lanes.
        """
        return self._drop(partition, out=False)

    def close(self, partition: Partition) -> Dropped:
        """Removes and returns a partition's records that are not running.

        They are ready to run, wait behind another record of their lane, or are parked (kept from
        running until they are due). Running records go on (see `OrphanedRuns`) but block
        no lane any more. So a record of another partition may start in the same lane while they
        still run.
        """
        dropped = self._drop(partition, out=True)
        self._guests.pop(partition, None)
        return dropped

    def _drop(self, partition: Partition, *, out: bool) -> Dropped:
        self._split()
        parked = self._unpark(partition)
        own = self._lanes_with(partition)
        ready = [r for lanes in own for r in lanes.ready if r.partition is partition]
        leaving = {*ready, *parked}
        for lanes in own:
            lanes.ready = deque(record for record in lanes.ready if record not in leaving)
        self._turn = deque(lanes for lanes in self._turn if lanes.ready)
        behind, unheld = [], []
        for lanes in own:
            for lane, head in list(lanes.busy.items()):
                others = followers(head)
                going = {
                    r for r in others if r.partition is partition and (out or r not in self._ahead)
                }
                staying = [record for record in others if record not in going]
                behind += [r for r in others if r in going and r not in self._ahead]
                for record in going:
                    record.follower = None
                self._ahead -= going
                if others:
                    follow(head, staying)
                if head in leaving or (out and head.partition is partition):
                    if (lanes, lane) in self._holding:
                        unheld += staying
                        self._holding.remove((lanes, lane))
                    self.finish((head,))
        return Dropped([*ready, *parked, *behind], unheld)

    def _unpark(self, partition: Partition) -> list[Record]:
        parked = [entry[2] for entry in self._parked if entry[2].partition is partition]
        if parked:
            self._parked = [entry for entry in self._parked if entry[2].partition is not partition]
            heapq.heapify(self._parked)
        return parked

    def _hold_no_more(self, records: Iterable[Record]) -> None:
        if self._holding:
            self._holding.difference_update((r.source_lanes, r.lane) for r in records)

    def _lanes_with(self, partition: Partition) -> set[PartitionLanes]:
        return {partition.lanes, *self._guests.get(partition, ())}

    def _ready(self, records: Iterable[Record]) -> None:
        for record in records:
            if not record.source_lanes.ready:
                self._turn.append(record.source_lanes)
            record.source_lanes.ready.append(record)
