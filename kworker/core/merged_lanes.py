"""Merged lanes: the records of a partition run in the order of delivery, which keeps all lanes'.

While lanes are merged, `PartitionLanes.busy` is empty. `Lanes` says when they are.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from kworker.core.chunk import Chunk, ChunkRow, Row
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


def take_records(turn: deque[PartitionLanes], most: int) -> Row:
    """Takes up to `most` records, in turn, of partitions whose first records are single ones."""
    row = Row()

    def take(lanes: PartitionLanes, share: int) -> int:
        ready = lanes.ready
        if share >= len(ready):
            lanes.out, lanes.ready = ready, deque()
        else:
            lanes.out = deque([ready.popleft() for _ in range(share)])
        row.extend(lanes.out)
        return len(lanes.out)

    _take_in_turn(turn, most, take)
    return row


def take_chunks(turn: deque[PartitionLanes], least: int) -> ChunkRow:
    """Takes chunks, in turn, of partitions whose first records are in chunks.

    They have at least `least` records, if so many wait.
    """
    row: list[Chunk] = []

    def take(lanes: PartitionLanes, share: int) -> int:
        taken = 0
        while lanes.chunks and taken < share and not lanes.ready:
            lanes.chunks_out.append(chunk := lanes.chunks.popleft())
            taken += len(chunk)
        row.extend(lanes.chunks_out)
        return taken

    _take_in_turn(turn, least, take)
    return ChunkRow(row)


def _take_in_turn(
    turn: deque[PartitionLanes], most: int, take: Callable[[PartitionLanes, int], int]
) -> None:
    """Takes an even share of each partition, none of which has anything out, until it is enough.

    `take` takes about a share of one and returns how many; 0 to pass it over, which keeps its turn.
    """
    passed: list[PartitionLanes] = []
    while turn and most > 0:
        share = max(1, most // len(turn))
        lanes = turn.popleft()
        if taken := take(lanes, share):
            most -= taken
        else:
            passed.append(lanes)
    turn.extendleft(reversed(passed))


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
