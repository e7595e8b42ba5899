"""What a replay reads: of each partition a stretch of offsets, and of that a window of time."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kworker.clients.consumer import Listener
from kworker.clients.events import ConsumerEvent, event_of
from kworker.core.membership import Absence
from kworker.core.message import PartitionId, RawMessage
from kworker.core.offset_map import Committed, Settled
from kworker.worker.intake import Taking
from kworker.worker.publish.committer import Committing

ReadRanges = Callable[[str, Mapping[int, range]], Iterable[RawMessage]]
"""The records of a topic's partitions within these offsets."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From a timestamp up to another, in ms since 1970, without the latter; None is no bound."""

    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def empty(self) -> bool:
        return self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms

    def holds(self, timestamp_ms: int) -> bool:
        """A record without a timestamp has -1, which only an unbounded window holds."""
        if self.from_ms is not None and timestamp_ms < self.from_ms:
            return False
        return self.to_ms is None or timestamp_ms < self.to_ms


def stretches(
    first: Mapping[PartitionId, int], settled: Mapping[PartitionId, Settled]
) -> dict[PartitionId, range]:
    """From each partition's first offset that may be of interest to the last that is settled.

    Where nothing is of interest, the offset is -1. No stretch is empty.
    """
    both = first.keys() & settled.keys()
    found = {at: range(first[at], settled[at].end) for at in sorted(both) if first[at] >= 0}
    return {at: span for at, span in found.items() if span}


class OffsetRanges:
    """The stretches, and how far they are read. Owned by the poll thread.

    Timestamps may go back and forth, so a stretch is read to its end, record by record. What
    of it is not settled is the service's to run.
    """

    def __init__(
        self,
        spans: Mapping[PartitionId, range],
        window: TimeRange,
        settled: Mapping[PartitionId, Settled] | None = None,
    ) -> None:
        """No span is empty; where `settled` says nothing, all of it is."""
        self._spans = dict(spans)
        self._window = window
        self._settled = settled or {}
        self._read = dict.fromkeys(spans, 0)
        self._going = set(spans)

    @property
    def spans(self) -> Mapping[PartitionId, range]:
        return self._spans

    @property
    def bounded(self) -> bool:
        """By time: then not all of the stretches is to be replayed."""
        return self._window != TimeRange()

    def counted(self, read: ReadRanges) -> dict[PartitionId, int]:
        """How many records of each stretch would be replayed, when all of them are read."""
        return {
            (topic, number): len(self.pick(read(topic, {number: span})))
            for (topic, number), span in self._spans.items()
        }

    @property
    def starts(self) -> dict[PartitionId, int]:
        return {at: span.start for at, span in self._spans.items()}

    @property
    def ends(self) -> dict[PartitionId, int]:
        """Where each stretch ends that is not read yet; 0 where nothing more is to come."""
        return {at: span.stop if at in self._going else 0 for at, span in self._spans.items()}

    @property
    def total(self) -> int:
        """All offsets; some may have no record."""
        return sum(map(len, self._spans.values()))

    @property
    def read(self) -> int:
        """Of those, how many are behind."""
        return sum(self._read.values())

    @property
    def over(self) -> bool:
        """Nothing more is to be read."""
        return not self._going

    def goes_on(self, at: PartitionId) -> bool:
        return at in self._going

    def pick(self, batch: Iterable[RawMessage]) -> list[RawMessage]:
        """Of what the client returned, the records to be replayed, and the troubles."""
        return [raw for raw in batch if self._wants(raw)]

    def _wants(self, raw: RawMessage) -> bool:
        at = (raw.topic(), raw.partition())
        if raw.error() is not None:
            if event_of(raw) is not ConsumerEvent.PARTITION_EOF:
                return True
            # What was settled and is not there was erased since.
            self._finish(at)
            return False
        offset, span = raw.offset(), self._spans[at]
        if offset >= span[-1]:
            self._finish(at)
        elif at in self._going:
            self._read[at] = offset - span.start
        if offset not in span or not self._window.holds(raw.timestamp()[1]):
            return False
        return at not in self._settled or self._settled[at].has(offset)

    def rewind(self, at: PartitionId, offset: int) -> None:
        """It is read again from this offset on."""
        self._going.add(at)
        self._read[at] = max(0, offset - self._spans[at].start)

    def _finish(self, at: PartitionId) -> None:
        self._going.discard(at)
        self._read[at] = len(self._spans[at])


class RangeClient(Taking, Committing, Protocol):
    """What is needed of `KafkaConsumer` or its twin, without ever subscribing it."""

    def group_metadata(self) -> object: ...


class RangeConsumer:
    """A consumer of a course, for a poller.

    It joins no group, so nothing is ever revoked or lost: it gives itself all partitions by
    its first `poll`. Positions that it commits are there for whoever looks at the group.
    """

    def __init__(self, client: RangeClient, listener: Listener, course: OffsetRanges) -> None:
        self._client = client
        self._listener = listener
        self._course = course
        self._begun = False
        self._open = set(course.starts)  # not paused for good

    def poll(self, most: int, timeout_s: float) -> list[RawMessage]:
        """What is to be replayed of up to `most` records and events; serves every callback."""
        if not self._begun:
            self._begun = True
            self._listener.assigned(list(self._course.starts))
            return []
        picked = self._course.pick(self._client.poll(most, timeout_s))
        if over := {at for at in self._open if not self._course.goes_on(at)}:
            self._client.pause(over)
            self._open -= over
        return picked

    def positions(
        self,
        partitions: Iterable[PartitionId],
        timeout_s: float,  # noqa: ARG002 - asks nobody
    ) -> dict[PartitionId, Committed | None]:
        """Where the stretches begin."""
        starts = self._course.starts
        return {at: Committed(starts[at]) for at in partitions}

    def hidden(self, partitions: Iterable[PartitionId]) -> list[PartitionId]:  # noqa: ARG002 - whatever they are
        """None: nobody is asked where they begin."""
        return []

    @property
    def absence(self) -> Absence | None:
        """None: it needs no place in a group."""
        return None

    def assign(self, positions: Mapping[PartitionId, int | None]) -> None:
        self._client.assign(positions)

    def unassign(self, partitions: Iterable[PartitionId]) -> None:
        self._client.unassign(partitions)

    def pause(self, partitions: Iterable[PartitionId]) -> None:
        self._client.pause(partitions)

    def resume(self, partitions: Iterable[PartitionId]) -> None:
        """But for those that are read to their ends."""
        self._client.resume([at for at in partitions if self._course.goes_on(at)])

    def seek(self, at: PartitionId, offset: int) -> None:
        """The next record of a paused partition, when it is resumed, is the one at this offset."""
        self._course.rewind(at, offset)
        self._open.add(at)
        self._client.seek(at, offset)

    def recreate(self) -> None:
        """Raises RuntimeError: who is no member is never fenced."""
        raise RuntimeError("a replay has no place in a group to take again")

    def commit(self, positions: Mapping[PartitionId, Committed]) -> None:
        self._client.commit(positions)

    def commit_now(self, positions: Mapping[PartitionId, Committed]) -> None:
        self._client.commit_now(positions)

    def group_metadata(self) -> object:
        return self._client.group_metadata()

    def watermarks(self, at: PartitionId, timeout_s: float) -> tuple[int, int]:
        return self._client.watermarks(at, timeout_s)
