"""Order: which records may run now. A lane is one key (or one partition), never a hash bucket."""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, count
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
        self._holding: set[tuple[Partition, object]] = set()  # lanes behind a held record
        # Where records of a partition run that are not its own: those of a requeue partition.
        self._guests: dict[Partition, set[Partition]] = {}

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
            home = record.home
            if not home.ready:
                self._turn.appendleft(home)
            home.ready.appendleft(record)

    def finish(self, records: Iterable[Record]) -> None:
        """The records have their last outcome: the next of each lane may run."""
        for record in records:
            lane = record.lane
            if lane is None:
                continue
            home = record.home
            if not (waiting := home.busy.pop(lane, None)):
                continue
            home.busy[lane] = waiting
            following, ready = waiting.popleft(), home.ready
            # Older first: the oldest record is what holds back the commit.
            if not ready:
                self._turn.append(home)
                ready.append(following)
            elif following.taken < ready[0].taken:
                ready.appendleft(following)
            else:
                ready.append(following)

    def behind(self, record: Record) -> Sequence[Record]:
        """What waits in the record's lane for its end."""
        return () if record.lane is None else tuple(record.home.busy.get(record.lane) or ())

    def park(self, record: Record, due: float) -> None:
        """The record runs again at `due` (monotonic seconds); its lane waits with it."""
        heapq.heappush(self._parked, (due, next(self._turns), record))

    def hold(self, record: Record, due: float) -> list[Record]:
        """The same; all that is held with it. What comes to its lane until then is held, too."""
        self.park(record, due)
        if record.lane is not None:
            self._holding.add((record.home, record.lane))
        return [record, *self.behind(record)]

    def held_back(self, records: Iterable[Record]) -> list[Record]:
        """Of records just added, those that wait behind one that is held."""
        if not self._holding:
            return []
        return [record for record in records if (record.home, record.lane) in self._holding]

    def wake(self, now: float) -> list[Record]:
        """What is due becomes ready."""
        woken = []
        while self._parked and self._parked[0][0] <= now:
            woken.append(heapq.heappop(self._parked)[2])
        self._hold_no_more(woken)
        self._ready(woken)
        return woken

    def pull(self, records: Iterable[Record]) -> list[Record]:
        """Of these, those that are parked; they are no more. Their lanes still wait for them."""
        wanted = {id(record) for record in records}
        found = sorted(entry for entry in self._parked if id(entry[2]) in wanted)
        if found:
            self._parked = [entry for entry in self._parked if id(entry[2]) not in wanted]
            heapq.heapify(self._parked)
        pulled = [entry[2] for entry in found]
        self._hold_no_more(pulled)
        return pulled

    def recall(self, records: Iterable[Record]) -> list[Record]:
        """Of these, those that are parked become ready before their time."""
        pulled = self.pull(records)
        self._ready(pulled)
        return pulled

    def all_parked(self) -> list[Record]:
        return [entry[2] for entry in self._parked]

    def next_due(self) -> float | None:
        return self._parked[0][0] if self._parked else None

    def waiting(self, partition: Partition) -> set[int]:
        """The offsets of a partition's records that are not out."""
        lanes = (record for home in self._homes(partition) for record in _waiting_in(home))
        parked = (entry[2] for entry in self._parked)
        return {r.offset for r in chain(lanes, parked) if r.partition is partition}

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

        homes = self._homes(partition)
        for home in homes:
            home.ready = deque(filter(keeps, home.ready))
        self._turn = deque(home for home in self._turn if home.ready)
        heads = [*dropped, *(entry[2] for entry in self._parked if entry[2].partition is partition)]
        for home in homes:
            for lane, behind in home.busy.items():
                home.busy[lane] = deque(filter(keeps, behind)) if behind else behind
        dropped += self._drop_parked(partition)
        self._hold_no_more(heads)
        # What another partition has behind one of these goes on.
        self.finish(heads)
        return dropped

    def close(self, partition: Partition) -> list[Record]:
        """Forgets all that waits of a partition; what others have in its lanes goes home."""
        dropped = self.drop(partition, -1)
        self._guests.pop(partition, None)
        guests = list(_waiting_in(partition))
        if partition.ready:
            self._turn.remove(partition)
        partition.ready, partition.busy = deque(), {}
        self._holding = {(home, lane) for home, lane in self._holding if home is not partition}
        for record in guests:
            self.add_to(None, record)
        for _, _, record in self._parked:
            if record.home is partition:
                self._move(record, record.partition)
                record.home.busy.setdefault(record.lane, None)
        return dropped

    def add_to(self, home: Partition | None, record: Record) -> None:
        """A record that comes again, into the lanes of its source; None: that is not here."""
        self._move(record, home or record.partition)
        if record.home is not record.partition:
            self._guests.setdefault(record.partition, set()).add(record.home)
        self.add(record.home, (record,))

    def _move(self, record: Record, home: Partition) -> None:
        """The same lane has another name where several partitions' records run."""
        record.home = home
        (lane,) = self.lanes_of((record.raw.key(),))
        if lane is not None and home is record.partition:
            source = record.source
            lane = (source.topic, source.partition, lane)
        record.lane = lane

    def _hold_no_more(self, records: Iterable[Record]) -> None:
        if self._holding:
            self._holding.difference_update((record.home, record.lane) for record in records)

    def _homes(self, partition: Partition) -> set[Partition]:
        return {partition, *self._guests.get(partition, ())}

    def _ready(self, records: Iterable[Record]) -> None:
        for record in records:
            if not record.home.ready:
                self._turn.append(record.home)
            record.home.ready.append(record)

    def _drop_parked(self, partition: Partition) -> list[Record]:
        """Parked records, and what the partition has behind them, which must not overtake."""
        parked = [entry[2] for entry in self._parked if entry[2].partition is partition]
        self._parked = [entry for entry in self._parked if entry[2].partition is not partition]
        heapq.heapify(self._parked)
        gone = list(parked)
        for record in parked:
            behind = self.behind(record)
            gone += [other for other in behind if other.partition is partition]
            if behind:
                rest = deque(other for other in behind if other.partition is not partition)
                record.home.busy[record.lane] = rest
        return gone


def _waiting_in(home: Partition) -> Iterable[Record]:
    """What waits in a partition's lanes, parked records aside."""
    return chain(home.ready, *(behind for behind in home.busy.values() if behind))
