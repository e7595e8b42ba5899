"""Order: which records may run now. A lane is one key (or one partition), never a hash bucket."""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Literal

from kworker.core.record import Partition, Record

Ordering = Literal["key", "partition", "none"]
_WHOLE_PARTITION = True


class Lanes:
    """The records of one worker that wait for a handler.

    Owned by the poll thread. At most one record of a lane is out at a time, so any
    run of ready records holds different lanes. A parked record keeps its lane.
    Partitions take turns, so that the backlog of one does not make the others wait.
    """

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._turn: deque[Partition] = deque()  # those with something ready
        self._parked: list[tuple[float, int, Record]] = []
        self._turns = count()

    @property
    def ready(self) -> bool:
        """Something may run."""
        return bool(self._turn)

    @property
    def parked(self) -> int:
        return len(self._parked)

    def lanes_of(self, keys: Sequence[bytes | None]) -> Sequence[object]:
        """None means no order: a null key is no key."""
        if self._ordering == "key":
            return keys
        return [_WHOLE_PARTITION if self._ordering == "partition" else None] * len(keys)

    def add(self, partition: Partition, records: Iterable[Record]) -> None:
        """Records of one partition, in the order of delivery."""
        if not partition.ready:
            self._turn.append(partition)
        busy, ready = partition.busy, partition.ready.append
        for record in records:
            lane = record.lane
            if lane is None:
                ready(record)
            elif lane not in busy:
                busy[lane] = None
                ready(record)
            elif (waiting := busy[lane]) is None:
                busy[lane] = deque((record,))
            else:
                waiting.append(record)
        if not partition.ready:
            self._turn.pop()

    def take(self, most: int) -> deque[Record]:
        """Up to `most` ready records, of as many lanes."""
        turn = self._turn
        run: deque[Record] = deque()
        while turn and most > 0:
            share = max(1, most // len(turn))
            partition = turn.popleft()
            ready = partition.ready
            if share >= len(ready):
                most -= len(ready)
                run.extend(ready)
                ready.clear()
                continue
            most -= share
            turn.append(partition)
            if share == 1:
                run.append(ready.popleft())
            else:
                run.extend([ready.popleft() for _ in range(share)])
        return run

    def put_back(self, records: Iterable[Record]) -> None:
        """Records that were taken and did not start, in the order in which they were taken."""
        for record in reversed(list(records)):
            partition = record.partition
            if not partition.ready:
                self._turn.appendleft(partition)
            partition.ready.appendleft(record)

    def finish(self, records: Iterable[Record]) -> None:
        """The records have their last outcome: the next of each lane may run."""
        for record in records:
            lane = record.lane
            if lane is None:
                continue
            partition = record.partition
            if not (waiting := partition.busy.pop(lane)):
                continue
            partition.busy[lane] = waiting
            following, ready = waiting.popleft(), partition.ready
            # Older first: the oldest record is what holds back the commit.
            if not ready:
                self._turn.append(partition)
                ready.append(following)
            elif following.taken < ready[0].taken:
                ready.appendleft(following)
            else:
                ready.append(following)

    def park(self, record: Record, due: float) -> None:
        """The record runs again at `due` (monotonic seconds); its lane waits with it."""
        heapq.heappush(self._parked, (due, next(self._turns), record))

    def wake(self, now: float) -> None:
        """What is due becomes ready."""
        while self._parked and self._parked[0][0] <= now:
            record = heapq.heappop(self._parked)[2]
            if not record.partition.ready:
                self._turn.append(record.partition)
            record.partition.ready.append(record)

    def next_due(self) -> float | None:
        return self._parked[0][0] if self._parked else None

    def waiting(self, partition: Partition) -> set[int]:
        """The offsets of a partition's records that are not out."""
        offsets = {record.offset for record in partition.ready}
        for behind in partition.busy.values():
            offsets.update(record.offset for record in behind or ())
        parked = (entry[2] for entry in self._parked)
        return offsets.union(r.offset for r in parked if r.partition is partition)

    def drop(self, partition: Partition, above: int) -> list[Record]:
        """Forgets what waits of a partition beyond the offset `above`, parked records too.

        What lies at or below `above` and is not parked stays: it must still run, or
        what has finished beyond it would be done again.
        """
        dropped: list[Record] = []

        def keeps(record: Record) -> bool:
            if record.offset <= above:
                return True
            dropped.append(record)
            return False

        if partition.ready:
            partition.ready = deque(filter(keeps, partition.ready))
            if not partition.ready:
                self._turn.remove(partition)
        for lane, waiting in partition.busy.items():
            if waiting:
                partition.busy[lane] = deque(filter(keeps, waiting))
        dropped += self._drop_parked(partition)
        return dropped

    def _drop_parked(self, partition: Partition) -> list[Record]:
        gone = [entry[2] for entry in self._parked if entry[2].partition is partition]
        self._parked = [entry for entry in self._parked if entry[2].partition is not partition]
        heapq.heapify(self._parked)
        for record in list(gone):
            # Those behind a parked record of the same lane can never become ready.
            if record.lane is not None and (waiting := partition.busy.get(record.lane)):
                gone.extend(waiting)
                partition.busy[record.lane] = None
        return gone
