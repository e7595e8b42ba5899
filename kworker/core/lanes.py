"""Order: which records may run now. A lane is one key (or one partition), never a hash bucket."""

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import Literal

from kworker.core.record import Partition, Record

Ordering = Literal["key", "partition", "none"]
_WHOLE_PARTITION = True


class Lanes:
    """The records of one worker that wait for a handler.

    Owned by the poll thread. At most one record of a lane is out at a time, so any
    run of ready records holds different lanes. A parked record keeps its lane.
    """

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._ready: deque[Record] = deque()
        self._parked: list[tuple[float, int, Record]] = []
        self._turns = count()

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def parked(self) -> int:
        return len(self._parked)

    def lane_of(self, key: bytes | None) -> object:
        """None means no order: a null key is no key."""
        if self._ordering == "key":
            return key
        return _WHOLE_PARTITION if self._ordering == "partition" else None

    def add(self, partition: Partition, records: Iterable[Record]) -> None:
        """Records of one partition, in the order of delivery."""
        busy, ready = partition.busy, self._ready.append
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

    def take(self, most: int) -> deque[Record]:
        """Up to `most` ready records, of as many lanes."""
        ready = self._ready
        if most >= len(ready):
            self._ready = deque()
            return ready
        return deque([ready.popleft() for _ in range(most)])

    def put_back(self, records: Iterable[Record]) -> None:
        """Records that were taken and did not start, in the order in which they were taken."""
        self._ready.extendleft(reversed(list(records)))

    def finish(self, records: Iterable[Record]) -> None:
        """The records have their last outcome: the next of each lane may run."""
        ready = self._ready
        for record in records:
            lane = record.lane
            if lane is None:
                continue
            busy = record.partition.busy
            if not (waiting := busy[lane]):
                del busy[lane]
                continue
            following = waiting.popleft()
            # Older first: the oldest record is what holds back the commit.
            if ready and following.taken < ready[0].taken:
                ready.appendleft(following)
            else:
                ready.append(following)

    def park(self, record: Record, due: float) -> None:
        """The record runs again at `due` (monotonic seconds); its lane waits with it."""
        heapq.heappush(self._parked, (due, next(self._turns), record))

    def wake(self, now: float) -> None:
        """What is due becomes ready."""
        while self._parked and self._parked[0][0] <= now:
            self._ready.append(heapq.heappop(self._parked)[2])

    def next_due(self) -> float | None:
        return self._parked[0][0] if self._parked else None

    def drop(self, partition: Partition, above: int) -> list[Record]:
        """Forgets what waits of a partition beyond the offset `above`, parked records too.

        What lies at or below `above` and is not parked stays: it must still run, or
        what has finished beyond it would be done again.
        """
        dropped: list[Record] = []

        def keeps(record: Record) -> bool:
            if record.partition is not partition or record.offset <= above:
                return True
            dropped.append(record)
            return False

        self._ready = deque(filter(keeps, self._ready))
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
