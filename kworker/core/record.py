"""A record on its way through a worker, and the partition that it came from.

This file has over 300 lines, since the classes for partition, lanes and record use each other.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any

from kworker.core.headers import OFFSET_BITS, Envelope, Source, with_trace
from kworker.core.ledger import Ledger
from kworker.core.message import Fields, RawMessage, with_headers
from kworker.core.offset_map import Committed, OffsetRange, encode
from kworker.core.outcome import (
    RECORD_OVERHEAD,
    OnDeadCall,
    Outcome,
    Output,
    PlainResult,
    outputs_of,
)

if TYPE_CHECKING:
    from kworker.core.chunk import Chunk

PLACE_BITS = OFFSET_BITS  # in a word that names the partition, too
NAMELESS = (1 << 15) - 1  # an index that the scoreboard has no room to name
_POSITION_BYTES_MAX = 128  # the header's name, an offset, a timestamp, and what frames them


class PartitionLanes:
    """The lanes (one queue for each key) of one source partition, in all its assignments.

    Managed by `Lanes`. Records of the requeue topic run in the lanes of their source partition. So
    the lanes outlive the assignment of the source partition and of the requeue partition: they
    exist as long as any `Partition` or `Record` refers to them.
    """

    __slots__ = (
        "__weakref__",
        "busy",
        "chunks",
        "chunks_out",
        "number",
        "out",
        "ready",
        "topic",
    )

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.ready: deque[Record] = deque()  # may run now
        self.busy: dict[object, Record] = {}  # the record that holds each lane; others follow it
        # While lanes are merged, which leaves `busy` empty: taken and not finished, in order. Those
        # in chunks come after the others, both of what waits and of what was taken.
        self.out: deque[Record] = deque()
        self.chunks: deque[Chunk] = deque()
        self.chunks_out: deque[Chunk] = deque()

    def replace(self, holder: "Record", by: "Record") -> None:
        """Gives the lane (the queue of one key) of the record `holder` to the record `by`.

        Does nothing if `holder` is not at the head of its lane.
        """
        if self.busy.get(holder.lane) is holder:
            self.busy[holder.lane] = by
            behind = followers(holder)
            follow(holder, ())
            follow(by, behind)


class Partition:
    """A partition of a source topic or of the requeue topic, for one assignment.

    Owned by the poll thread. `open` is False once the assignment has ended. An outcome that comes
    after that is dropped, unless the record is redelivered in a later assignment: then the outcome
    may count for the redelivered record (see `OrphanedRuns`). `origin` identifies the partition's
    log (cluster, topic id, partition), and is in the metadata of every commit.
    """

    __slots__ = (
        "_told",
        "_told_of",
        "end_offset",
        "epoch",
        "frame_size",
        "held",
        "held_bytes",
        "in_flight",
        "in_flight_bytes",
        "lanes",
        "ledger",
        "map_full_from",
        "number",
        "open",
        "origin",
        "prefix",
        "scoreboard_index",
        "scoreboard_word",
        "settled",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        number: int,
        epoch: int,
        scoreboard_index: int,
        position: int | None,
        origin: bytes,
        done: Iterable[OffsetRange] = (),
    ) -> None:
        """`position` is the group's committed position; `done` has the ranges of its offset map."""
        self.topic = topic
        self.number = number
        self.prefix = f"{topic}/{number}/".encode()  # of a source position in a header
        # Of a record with that header alone, but for key and value.
        self.frame_size = RECORD_OVERHEAD + _POSITION_BYTES_MAX + len(self.prefix)
        self.epoch = epoch
        self.scoreboard_index = scoreboard_index  # in the scoreboard's text
        # With an offset added, one word names both.
        self.scoreboard_word = min(scoreboard_index, NAMELESS) << PLACE_BITS
        self.ledger = Ledger(position, done)
        self.origin = origin
        self._told = ""  # the last metadata
        self._told_of: tuple[int | None, int] = (None, -1)  # the position and version it tells
        self.map_full_from: int | None = None  # the first offset without room in the offset map
        self.open = True
        self.end_offset = 0  # its end, as the brokers told lately
        self.in_flight = 0  # records without an outcome
        self.in_flight_bytes = 0
        self.held = 0  # records of keys that are held
        self.held_bytes = 0
        self.settled = 0  # records, ever
        self.lanes = PartitionLanes(topic, number)  # or that of an earlier epoch: see `Lanes.open`

    def settle(self, offsets: Collection[int]) -> None:
        """Notes that all outputs of the records with these offsets are durable."""
        self.settled += len(offsets)
        self.ledger.settle(offsets)

    def committed(self) -> Committed | None:
        """Returns the position and offset map to commit now; None while no position is known."""
        ledger, position = self.ledger, self.ledger.position
        if position is None:
            return None
        if self._told_of != (position, ledger.version):
            runs = ledger.position_after()[1] if ledger.has_done_beyond else []
            self._told = encode(self.origin, position, runs)
            self._told_of = position, ledger.version
        return Committed(position, self._told)

    def committed_after(self, offsets: Collection[int]) -> Committed | None:
        """Returns the position and offset map to commit once these offsets are settled, too."""
        position, runs = self.ledger.position_after(offsets)
        if position is None:
            return None
        beyond = self.ledger.has_done_beyond or max(offsets, default=-1) > position
        return Committed(position, encode(self.origin, position, runs if beyond else []))

    @property
    def starving(self) -> bool:
        """True if every delivered record has an outcome, and Kafka has further ones to deliver."""
        return self.in_flight == 0 and self.end_offset > (self.ledger.end or 0)


Reports = tuple[tuple[object, object], ...]
"""Delivery reports of outputs that failed: the client's error, and the message."""


PACKED: RawMessage = Fields(("", -1, -1), 0, None, None, ())
"""Stands in for the client's record where `values` and the result have all of it."""


class Values:
    """The values of packed records (see `pack`), joined into one bytes object.

    Freeing thousands of single values is slow once they have left the CPU's caches: it takes a
    tenth of the whole processing time of a record that has a result.
    """

    __slots__ = ("_ends", "_joined", "_sizes")

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self._joined = b"".join(filter(None, values))
        self._sizes = [None if value is None else len(value) for value in values]
        self._ends: list[int] = []  # made when one of them is asked for, which is rare

    def __getitem__(self, nth: int) -> bytes | None:
        size = self._sizes[nth]
        if size is None:
            return None
        self._ends = self._ends or list(accumulate(size or 0 for size in self._sizes))
        end = self._ends[nth]
        return self._joined[end - size : end]


class Record:
    """One record from its delivery to its outcome. Made by `records_of`.

    Handed from the poll thread to a handler thread and back; the thread that has it owns it. Some
    attributes exist for a while only. A record with an envelope (kworker's own headers) has
    `scoreboard_word`: its source position, encoded for the scoreboard. A packed record (its
    message was freed by `pack`) has `values`, the joined values of many records, and `nth`, the
    index of its own value among them. Records of one key wait in a queue, their lane: if any wait
    behind this record, `last` is the last of them. A record whose outputs wait for Kafka has
    `output_bytes`, the size of these outputs.
    """

    partition: Partition  # where it is settled
    offset: int
    source_lanes: PartitionLanes  # whose lanes it runs in: its source's
    envelope: Envelope | None  # of one that comes again, by the requeue topic
    claim: str | None  # the id of its event; "": none; None: not asked for
    lane: object  # None: no order to keep
    follower: "Record | None"  # the next of its lane
    memory_bytes: int  # by which Flow counts it
    raw: RawMessage
    taken_ns: int  # the monotonic time of the poll that brought it: older records go first
    attempt: int
    outcome: Outcome | None  # while its last run has not ended
    on_dead: OnDeadCall | None  # what the pool shall do instead of a run
    failed_deliveries: Reports  # of its outputs, by Kafka
    scoreboard_word: int
    last: "Record"
    output_bytes: int
    values: Values
    nth: int

    __slots__ = (
        "attempt",
        "claim",
        "envelope",
        "failed_deliveries",
        "follower",
        "lane",
        "last",
        "memory_bytes",
        "nth",
        "offset",
        "on_dead",
        "outcome",
        "output_bytes",
        "partition",
        "raw",
        "scoreboard_word",
        "source_lanes",
        "taken_ns",
        "values",
    )

    def comes_again(self, envelope: Envelope, scoreboard_index: int) -> None:
        """Turns this record of the requeue topic into the source record that `envelope` describes.

        `scoreboard_index` is the index of the source partition in the scoreboard.
        """
        source = envelope.source
        self.envelope = envelope
        self.scoreboard_word = (min(scoreboard_index, NAMELESS) << PLACE_BITS) + source.offset
        self.attempt = envelope.attempt
        key, value = self.raw.key(), self.raw.value()
        self.raw = Fields(source.place, source.timestamp, key, value, tuple(envelope.restored))

    def continue_trace(self, traceparent: bytes) -> None:
        """Replaces the header `traceparent`, which all outputs of the record will carry."""
        headers = with_trace(self.raw.headers() or [], traceparent)
        self.raw = with_headers(self.raw, tuple(headers))
        if self.envelope is not None:
            carried = with_trace(self.envelope.carried, traceparent)
            self.envelope = replace(self.envelope, carried=carried)

    def stand_for(self, again: "Record") -> None:
        """Lets this record, whose run outlives its assignment, count for its redelivery `again`.

        `again` was delivered in a later assignment. It does not run: this record gets the partition
        and the lane of `again`.
        """
        again.source_lanes.replace(again, self)
        self.partition, self.lane = again.partition, again.lane
        self.source_lanes = again.source_lanes
        self.memory_bytes, self.taken_ns = again.memory_bytes, again.taken_ns
        self.failed_deliveries = ()  # of outputs that are written anew

    @property
    def outputs(self) -> Sequence[Output]:
        """The outputs of a record whose outcome is `Publishable`. Hot paths inline this."""
        outcome: Any = self.outcome
        return outputs_of(outcome)

    @property
    def is_first_run(self) -> bool:
        """True if the next run is the first since delivery, and no call of the handler's `dead`."""
        first = 1 if self.envelope is None else self.envelope.attempt
        return self.attempt == first and self.on_dead is None

    @property
    def replay(self) -> bytes:
        """The id of a replay, if the record was redriven from a dead letter of this replay.

        b"" for any other record. b"" also for a record with a claim: it runs only if its event was
        never done before, so its results are no repetition.
        """
        return b"" if self.envelope is None or self.claim else self.envelope.replay

    def unpack(self) -> None:
        """Restores the message that `pack` has freed; does nothing if the record is not packed.

        The key, and the source header that names topic, partition, offset and timestamp, are read
        from the record's only output. The value is the one that `pack` has kept.
        """
        if self.raw is PACKED:
            source, result = self._packed()
            self.raw = Fields(source.place, source.timestamp, result.key, self.values[self.nth], ())
            del self.values, self.nth

    def _packed(self) -> tuple[Source, Output]:
        result = self.outcome
        assert isinstance(result, PlainResult)
        assert isinstance(result.own, bytes)
        return Source.parse(result.own), result

    @property
    def source(self) -> Source:
        """The record's position and timestamp in its source topic, even if it came by requeue."""
        if self.envelope is not None:
            return self.envelope.source
        if self.raw is PACKED:
            return self._packed()[0]
        partition = self.partition
        return Source(partition.topic, partition.number, self.offset, self.raw.timestamp()[1])

    def __call__(self, error: object, message: object) -> None:
        """Stores the delivery report of an output that Kafka refused.

        The record itself is the producer's callback: a bound method for each record would be
        one object more.
        """
        self.failed_deliveries = (*self.failed_deliveries, (error, message))


def records_of(
    partition: Partition,
    offsets: Iterable[int],
    lanes: Iterable[object],
    sizes: Iterable[int],
    raws: Iterable[RawMessage],
    taken_ns: int = 0,
) -> list[Record]:
    """Makes a record of each of a partition's messages, with its lane and its size in memory.

    Python 3.11 takes 1.4 times as long for a class with a constructor of its own.
    """
    records: list[Record] = []
    add, source_lanes = records.append, partition.lanes
    for offset, lane, size, raw in zip(offsets, lanes, sizes, raws, strict=True):
        record = Record()
        record.partition = partition
        record.offset = offset
        record.source_lanes = source_lanes
        record.envelope = None
        record.claim = None
        record.lane = lane
        record.follower = None
        record.memory_bytes = size
        record.raw = raw
        record.taken_ns = taken_ns
        record.attempt = 1
        record.outcome = None
        record.on_dead = None
        record.failed_deliveries = ()
        add(record)
    return records


def followers(record: Record) -> list[Record]:
    """Returns, in order, the records that wait behind a record in its lane (queue of one key)."""
    found: list[Record] = []
    following = record.follower
    while following is not None:
        found.append(following)
        following = following.follower
    return found


def follow(holder: Record, behind: Sequence[Record]) -> None:
    """Lets the records `behind` follow `holder`, in order, in its lane (queue of one key).

    Other records that followed `holder` do so no more.
    """
    if holder.follower is not None:
        del holder.last
    for record, following in zip_longest((holder, *behind), behind):
        record.follower = following
    if behind:
        holder.last = behind[-1]


def pack(records: Sequence[Record]) -> None:
    """Frees the messages of records that have run; keeps only their values, in one bytes object.

    Each record's outcome must be a `PlainResult`, and no record may have headers. From the outcome
    and the kept value, `unpack` restores the message. The bytes object is freed once none of the
    records is packed any more.
    """
    values = Values([record.raw.value() for record in records])
    for nth, record in enumerate(records):
        record.raw = PACKED
        record.values = values
        record.nth = nth
