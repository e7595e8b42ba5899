"""Merged lanes: the records of a partition run in the order of delivery, which keeps all lanes'.

While lanes are merged, `PartitionLanes.busy` is empty. `Lanes` says when they are.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from kworker.core.chunk import Chunk
from kworker.core.record import PartitionLanes, Record, follow, followers


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


def split(lanes: PartitionLanes) -> tuple[deque[Record], deque[Record]]:
    """Empties merged lanes; returns the records that are out, and those that wait, in order."""
    settle_chunks(lanes, break_up=True)
    unchunk(lanes)
    taken, waiting = lanes.out, lanes.ready
    lanes.out, lanes.ready = deque(), deque()
    return taken, waiting


def may_be_taken(lanes: PartitionLanes) -> bool:
    """Returns True if records of a partition wait, and none that were taken has yet to end."""
    return bool(lanes.ready or lanes.chunks) and not (lanes.out or lanes.chunks_out)


def add(lanes: PartitionLanes, records: Iterable[Record]) -> None:
    """Adds records behind all that wait."""
    unchunk(lanes)
    lanes.ready.extend(records)


def unchunk(lanes: PartitionLanes) -> None:
    """Breaks up the chunks that wait."""
    while lanes.chunks:
        lanes.ready.extend(lanes.chunks.popleft().break_up())


def take_first(lanes: PartitionLanes, most: int) -> deque[Record]:
    """Takes up to `most` of the single records of a partition of which none is out."""
    ready = lanes.ready
    if most >= len(ready):
        lanes.out, lanes.ready = ready, deque()
    else:
        lanes.out = deque([ready.popleft() for _ in range(most)])
    return lanes.out


def take_chunks(lanes: PartitionLanes, least: int) -> list[Chunk]:
    """Takes chunks with at least `least` records, if so many wait, of a partition with none out."""
    waiting, taken = lanes.chunks, lanes.chunks_out
    while waiting and least > 0:
        taken.append(chunk := waiting.popleft())
        least -= len(chunk)
    return list(taken)


def settle_chunks(lanes: PartitionLanes, *, break_up: bool = False) -> None:
    """Replaces the chunks that are over, which were taken, by the records that are left of them.

    With `break_up`, breaks up all that were taken.
    """
    while lanes.chunks_out and (break_up or lanes.chunks_out[0].is_over):
        chunk = lanes.chunks_out.popleft()
        lanes.out.extend(chunk.break_up() if break_up else chunk.records or ())


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
