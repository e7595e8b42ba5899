"""The input of a replay: the records of a range of time, in a range of offsets per partition."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kworker.clients.consumer import Listener
from kworker.clients.events import ConsumerEvent, event_of
from kworker.core.membership import Absence
from kworker.core.message import PartitionId, RawMessage
from kworker.core.offset_map import Committed, Settled
from kworker.core.times import TimeRange
from kworker.worker.intake import Taking
from kworker.worker.publish.committer import Committing

ReadRanges = Callable[[str, Mapping[int, range]], Iterable[RawMessage]]
"""The records of a topic's partitions within these offsets."""


def settled_ranges(
    first: Mapping[PartitionId, int], settled: Mapping[PartitionId, Settled]
) -> dict[PartitionId, range]:
    """Returns the range of offsets to read in each partition; leaves out empty ranges.

    A range begins at the offset in `first`; -1 means that there is nothing to read. It ends with
    the last offset in `settled`, which has the offsets that the service will not read again.
    """
    both = first.keys() & settled.keys()
    found = {at: range(first[at], settled[at].end) for at in sorted(both) if first[at] >= 0}
    return {at: span for at, span in found.items() if span}


class OffsetRanges:
    """The offset ranges that a replay reads, and its progress. Owned by the poll thread.

    Timestamps may be out of order, so every range is read to its end. Only records that the
    service has settled are replayed: those that it will not read again.
    """

    def __init__(
        self,
        spans: Mapping[PartitionId, range],
        time_range: TimeRange,
        settled: Mapping[PartitionId, Settled] | None = None,
    ) -> None:
        """No span may be empty. `settled` has the offsets that the service will not read again.

        If a partition is missing from `settled`, the service will read none of its offsets again.
        """
        self._spans = dict(spans)
        self._time_range = time_range
        self._settled = settled or {}
        self._read = dict.fromkeys(spans, 0)
        self._unread = set(spans)

    @property
    def spans(self) -> Mapping[PartitionId, range]:
        return self._spans

    @property
    def has_time_bounds(self) -> bool:
        """True if only records of a certain time are to be replayed."""
        return self._time_range != TimeRange()

    def count_records(self, read: ReadRanges) -> dict[PartitionId, int]:
        """Reads all ranges; returns the number of records to be replayed in each partition."""
        return {
            (topic, number): len(self.select(read(topic, {number: span})))
            for (topic, number), span in self._spans.items()
        }

    @property
    def starts(self) -> dict[PartitionId, int]:
        return {at: span.start for at, span in self._spans.items()}

    @property
    def ends(self) -> dict[PartitionId, int]:
        """The end offset of each range; 0 for a range that has been read completely."""
        return {at: span.stop if at in self._unread else 0 for at, span in self._spans.items()}

    @property
    def total(self) -> int:
        """The number of offsets in all ranges; some offsets may have no record."""
        return sum(map(len, self._spans.values()))

    @property
    def read(self) -> int:
        """The number of offsets read so far, in all ranges."""
        return sum(self._read.values())

    @property
    def finished(self) -> bool:
        """True if all ranges have been read to their ends."""
        return not self._unread

    def is_unread(self, at: PartitionId) -> bool:
        return at in self._unread

    def select(self, batch: Iterable[RawMessage]) -> list[RawMessage]:
        """Returns the messages of a batch that are errors, or records to be replayed."""
        return [raw for raw in batch if self._is_wanted(raw)]

    def _is_wanted(self, raw: RawMessage) -> bool:
        at = (raw.topic(), raw.partition())
        if raw.error() is not None:
            if event_of(raw) is not ConsumerEvent.PARTITION_EOF:
                return True
            # Settled records that are not there were erased since.
            self._finish(at)
            return False
        offset, span = raw.offset(), self._spans[at]
        if offset >= span[-1]:
            self._finish(at)
        elif at in self._unread:
            self._read[at] = offset - span.start
        if offset not in span or not self._time_range.contains(raw.timestamp()[1]):
            return False
        return at not in self._settled or self._settled[at].has(offset)

    def rewind(self, at: PartitionId, offset: int) -> None:
        """Sets the progress of a partition back, as it will be read again from this offset on."""
        self._unread.add(at)
        self._read[at] = max(0, offset - self._spans[at].start)

    def _finish(self, at: PartitionId) -> None:
        self._unread.discard(at)
        self._read[at] = len(self._spans[at])


class RangeClient(Taking, Committing, Protocol):
    """The methods of `KafkaConsumer` and its in-memory twin that a replay calls."""

    def group_metadata(self) -> object: ...


class RangeConsumer:
    """A consumer of fixed offset ranges, which the poll loop uses like a group's consumer.

    It joins no group: its first `poll` assigns all partitions, and none is ever revoked or
    lost. It commits positions only to show the progress of the replay.
    """

    def __init__(self, client: RangeClient, listener: Listener, ranges: OffsetRanges) -> None:
        self._client = client
        self._listener = listener
        self._ranges = ranges
        self._begun = False
        self._open = set(ranges.starts)  # not paused for good

    def poll(self, most: int, timeout_s: float) -> list[RawMessage]:
        """Polls up to `most` messages; returns the errors, and the records to be replayed."""
        if not self._begun:
            self._begun = True
            self._listener.assigned(list(self._ranges.starts))
            return []
        selected = self._ranges.select(self._client.poll(most, timeout_s))
        if read := {at for at in self._open if not self._ranges.is_unread(at)}:
            self._client.pause(read)
            self._open -= read
        return selected

    def positions(
        self,
        partitions: Iterable[PartitionId],
        timeout_s: float,  # noqa: ARG002 - sends no request
    ) -> dict[PartitionId, Committed | None]:
        """Returns the start of each partition's range, as if it were committed."""
        starts = self._ranges.starts
        return {at: Committed(starts[at]) for at in partitions}

    def hidden(self, partitions: Iterable[PartitionId]) -> list[PartitionId]:  # noqa: ARG002 - whatever they are
        """Returns an empty list, since a replay reads no committed positions.

        Kafka hides a committed position only while an open transaction is to change it.
        """
        return []

    @property
    def absence(self) -> Absence | None:
        """None always: a replay needs no membership, so it is never absent."""
        return None

    def assign(self, positions: Mapping[PartitionId, int | None]) -> None:
        self._client.assign(positions)

    def unassign(self, partitions: Iterable[PartitionId]) -> None:
        self._client.unassign(partitions)

    def pause(self, partitions: Iterable[PartitionId]) -> None:
        self._client.pause(partitions)

    def resume(self, partitions: Iterable[PartitionId]) -> None:
        """Resumes those of the partitions whose ranges have not been read to their ends."""
        self._client.resume([at for at in partitions if self._ranges.is_unread(at)])

    def seek(self, at: PartitionId, offset: int) -> None:
        """Sets the offset from which a paused partition is read when it is resumed."""
        self._ranges.rewind(at, offset)
        self._open.add(at)
        self._client.seek(at, offset)

    def recreate(self) -> None:
        """Raises RuntimeError, since this consumer is in no group.

        A member of a group needs a new client when it has lost its place in the group for good.
        """
        raise RuntimeError("a replay is not in a consumer group, so it cannot join one again")

    def commit(self, positions: Mapping[PartitionId, Committed]) -> None:
        self._client.commit(positions)

    def commit_now(self, positions: Mapping[PartitionId, Committed]) -> None:
        self._client.commit_now(positions)

    def group_metadata(self) -> object:
        return self._client.group_metadata()

    def watermarks(self, at: PartitionId, timeout_s: float) -> tuple[int, int]:
        return self._client.watermarks(at, timeout_s)
