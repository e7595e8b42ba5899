"""Merged lanes: the records of a partition run in the order of delivery, which keeps all lanes'.

While lanes are merged, `PartitionLanes.busy` is empty. `Lanes` says when they are.
"""

from collections import deque
from collections.abc import Collection, Sequence

from kworker.core.record import PartitionLanes, Record, follow, followers


class Row(deque[Record]):
    """Records that one thread runs one after the other, since any may be of the same lane.

    The records of a partition are adjacent. If one ends without results, those of its partition
    that come after it have to be put back.
    """


def merge(lanes: PartitionLanes, ahead: Collection[Record]) -> None:
    """Merges the lanes of a partition.

    `ahead` has the records that were taken before the earlier ones of their lanes have ended.
    """
    taken, waiting = deque[Record](), deque[Record]()
    waits = set(lanes.ready)
    for holder in lanes.busy.values():
        if holder in waits:
            continue
        taken.append(holder)
        for record in followers(holder):
            (taken if record in ahead else waiting).append(record)
    for first in lanes.ready:
        waiting += (first, *followers(first))
    for holder in lanes.busy.values():
        behind = followers(holder)
        follow(holder, ())
        for record in behind:
            record.follower = None
    lanes.busy.clear()
    lanes.out, lanes.ready = taken, waiting


def may_be_taken(lanes: PartitionLanes) -> bool:
    """Returns True if records of a partition wait, and none that were taken has yet to end."""
    return bool(lanes.ready) and not lanes.out


def take_first(lanes: PartitionLanes, most: int) -> deque[Record]:
    """Takes up to `most` records of a partition of which none is out."""
    ready = lanes.ready
    if most >= len(ready):
        lanes.out, lanes.ready = ready, deque()
    else:
        lanes.out = deque([ready.popleft() for _ in range(most)])
    return lanes.out


def finish(lanes: PartitionLanes, records: Sequence[Record]) -> list[PartitionLanes]:
    """Notes that records have ended; returns the lanes of which more may be taken since then.

    The records of one lane must be given in its order.
    """
    out = lanes.out
    if len(records) <= len(out):
        first = [out.popleft() for _ in records]
        if first == records:  # the usual case, and twice as fast
            return [lanes] if may_be_taken(lanes) else []
        out.extendleft(reversed(first))
    free = []
    for record in records:
        lanes = record.source_lanes  # of a requeued record, not those of its partition
        if record in lanes.out:  # else it was in no lane
            lanes.out.remove(record)
            if may_be_taken(lanes):
                free.append(lanes)
    return free
