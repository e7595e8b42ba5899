"""The way of a record that waits: from delay topic to delay topic, and when due, to requeue."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kworker.core.failure import Failure
from kworker.core.headers import (
    ATTEMPT,
    DUE,
    ERROR,
    EXCEPTION,
    FAILED_AT,
    FOREIGN_EXCEPTION,
    FOREIGN_TOPIC,
    MESSAGE,
    NO_ROOM_FOR_HEADERS,
    REASON,
    REDRIVEN,
    SOURCE,
    Envelope,
    Forged,
    Source,
    carried,
    no_room,
)
from kworker.core.message import NO_HEADERS, HeaderList, RawMessage, headers_of
from kworker.core.outcome import Output

NEAR_MS = 100
"""So little is waited for at the head of a partition, rather than by another hop."""
SKEW_MS = 5_000
"""By which clocks may differ, those of two hosts or one before and after it was set."""
_FORGED = f"{Forged.__module__}.{Forged.__qualname__}"


class DelayedRecord:
    """A record in a delay topic, and when its hop there ends (ms since 1970).

    `envelope` is None for one that cannot wait, because kworker did not write its headers or
    nobody can read them; `failure` says why.
    """

    __slots__ = ("envelope", "failure", "headers", "leaves_ms", "raw", "size")

    def __init__(self, raw: RawMessage, delay_ms: int, now_ms: int) -> None:
        self.raw = raw
        self.envelope: Envelope | None = None
        self.failure = Failure("undecodable")
        self.leaves_ms = 0  # at once
        [headers], unreadable = headers_of([raw])
        self.headers = headers or []
        self.size = len(raw) + len(raw.key() or b"") + _size(self.headers)
        if unreadable:
            self.failure = Failure.unreadable(unreadable[0], NO_HEADERS)
            return
        try:
            self.envelope = Envelope.open(self.headers)
        except Forged as error:
            self.failure = Failure("undecodable", exception=_FORGED, message=str(error))
        else:
            written_ms = raw.timestamp()[1]
            self.leaves_ms = leaves_ms(written_ms, delay_ms, self.envelope.due_ms, now_ms)


def leaves_ms(written_ms: int, delay_ms: int, due_ms: int, taken_ms: int) -> int:
    """When a hop ends that began at `written_ms`: not before its delay is over.

    A clock that went back, or a stamp from the future, does not keep what is behind it
    waiting: at the end of the hop, `due_ms` decides.
    """
    end_ms = min(written_ms, taken_ms + SKEW_MS) + delay_ms
    return due_ms if 0 < due_ms - end_ms <= NEAR_MS else end_ms


def next_delay(remaining_ms: int, delays_ms: Collection[int]) -> int:
    """The largest delay that fits into what remains, else the smallest.

    So the last hop ends late by less than the smallest delay. What the hops before it
    took too long, a little, does not make a delay unfit.
    """
    smallest_ms = min(delays_ms)
    slack_ms = min(NEAR_MS, smallest_ms // 10)
    fitting = [delay_ms for delay_ms in delays_ms if delay_ms <= remaining_ms + slack_ms]
    return max(fitting, default=smallest_ms)


@dataclass(frozen=True, slots=True)
class Routes:
    """Where records go from a delay topic, as far as the topics are known.

    `delays` are those that records may be sent to, in ms by topic; `partitions` are
    those of the topics that exist; `dead_bytes_max` is what a dead letter may have, if known.
    """

    requeue: str
    dead: str
    delays: Mapping[str, int]
    partitions: Mapping[str, int] = field(default_factory=dict)
    dead_bytes_max: int | None = None

    def of(self, partitions: Mapping[str, int]) -> "Routes":
        """The same over the topics as they are now."""
        return replace(self, partitions=partitions)

    def target(self, waiting: DelayedRecord, now_ms: int) -> str:
        """The topic for a record whose hop has ended."""
        if waiting.envelope is None:
            return self.dead
        remaining_ms = waiting.envelope.due_ms - now_ms
        return self.requeue if remaining_ms <= 0 else self._hop(remaining_ms, waiting.raw.topic())

    def output(self, waiting: DelayedRecord, target: str, now_ms: int) -> Output:
        """The record as it is written there: key and value as they are. KeyError if not there."""
        raw, envelope = waiting.raw, waiting.envelope
        if envelope is None:
            return self._letter(waiting, now_ms)
        headers = _forwarded(envelope, waiting.headers, again=target != self.requeue)
        partition = envelope.source.partition % self.partitions[target]
        return Output(target, raw.key(), raw.value(), headers, partition=partition)

    def _letter(self, waiting: DelayedRecord, now_ms: int) -> Output:
        """A dead letter, with as much of the record as has room: else it would wait for ever."""
        raw, own = waiting.raw, carried(waiting.headers)
        at = Source(raw.topic(), raw.partition(), raw.offset(), raw.timestamp()[1])
        partition = raw.partition() % self.partitions[self.dead]

        def letter(key: bytes | None, value: bytes | None, own: HeaderList, more: str) -> Output:
            headers = [*own, *_told(waiting.failure, at, more, now_ms)]
            return Output(self.dead, key, value, headers, partition=partition)

        whole = letter(raw.key(), raw.value(), own, "")
        if self.dead_bytes_max is None or whole.size <= self.dead_bytes_max:
            return whole
        bare = letter(raw.key(), raw.value(), [], NO_ROOM_FOR_HEADERS)
        return (
            bare if bare.size <= self.dead_bytes_max else letter(None, None, [], no_room(*at.place))
        )

    def _hop(self, remaining_ms: int, here: str) -> str:
        """The way round leads through the same topic, if no other is left."""
        there = {ms: topic for topic, ms in self.delays.items() if topic in self.partitions}
        return there[next_delay(remaining_ms, there)] if there else here


def _forwarded(envelope: Envelope, came: HeaderList, *, again: bool) -> HeaderList:
    """What goes on with the record: each of kworker's own headers once."""
    headers = list(envelope.carried)
    headers.append((SOURCE, str(envelope.source).encode()))
    headers.append((ATTEMPT, b"%d" % envelope.attempt))
    if envelope.redriven:
        headers.append((REDRIVEN, b"%d" % envelope.redriven))
    if again:
        headers.append((DUE, b"%d" % envelope.due_ms))
    errors = [header for header in came if header[0] == ERROR]
    return headers + errors[-1:]


def _told(failure: Failure, at: Source, more: str, now_ms: int) -> HeaderList:
    """kworker's headers of a dead letter, for a record that cannot wait."""
    return [
        (SOURCE, str(at).encode()),
        (ATTEMPT, b"1"),
        (FAILED_AT, b"%d" % now_ms),
        (REASON, failure.kind.encode()),
        (EXCEPTION, failure.exception.encode()),
        (MESSAGE, (failure.message + more).encode()),
        (FOREIGN_TOPIC, at.topic.encode()),
        (FOREIGN_EXCEPTION, failure.exception.encode()),
    ]


_OBJECT_BYTES = 800  # what a record costs beside its payload
_HEADER_BYTES = 100  # and a header


def _size(headers: Iterable[tuple[str, bytes | None]]) -> int:
    sizes = (_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)
    return _OBJECT_BYTES + 2 * sum(sizes)  # as they came, and opened
