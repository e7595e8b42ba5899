"""Routes of a waiting record: from delay topic to delay topic, and when due, to requeue."""

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
    REPLAY,
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
"""A wait this short is spent in the present delay topic, not in another one."""
SKEW_MS = 5_000
"""The difference allowed between two hosts' clocks, or one clock before and after it is set."""
_FORGED = f"{Forged.__module__}.{Forged.__qualname__}"


class DelayedRecord:
    """A record in a delay topic, with the time from which it may leave (ms since 1970).

    `envelope` holds kworker's headers. If they are missing or unreadable, it is None, `failure`
    says why, and the record leaves at once.
    """

    __slots__ = ("envelope", "failure", "headers", "leaves_ms", "raw", "size")

    def __init__(self, raw: RawMessage, delay_ms: int, now_ms: int) -> None:
        self.raw = raw
        self.envelope: Envelope | None = None
        self.failure = Failure("undecodable")
        self.leaves_ms = 0  # at once
        [headers], unreadable = headers_of([raw])
        self.headers = headers or []
        self.size = len(raw) + len(raw.key() or b"") + _header_bytes(self.headers)
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
    """Returns the time at which a record may leave its delay topic, in ms since 1970.

    This is `delay_ms` after `written_ms`. But a timestamp in the future must not hold up later
    records: `written_ms` counts as at most SKEW_MS after `taken_ms`, the time of reading. If the
    record is due at most NEAR_MS after the end of the delay, returns `due_ms` instead, so that the
    record need not wait in a second delay topic.
    """
    end_ms = min(written_ms, taken_ms + SKEW_MS) + delay_ms
    return due_ms if 0 < due_ms - end_ms <= NEAR_MS else end_ms


def next_delay(remaining_ms: int, delays_ms: Collection[int]) -> int:
    """Returns the largest delay that ends before the record is due, or the smallest if none does.

    So a record is late by less than the smallest delay. A delay that ends slightly after the
    record is due is allowed, too, because earlier delays may have ended a little late.
    """
    smallest_ms = min(delays_ms)
    slack_ms = min(NEAR_MS, smallest_ms // 10)
    fitting = [delay_ms for delay_ms in delays_ms if delay_ms <= remaining_ms + slack_ms]
    return max(fitting, default=smallest_ms)


@dataclass(frozen=True, slots=True)
class Routes:
    """The topics to which records go from a delay topic.

    `delays` maps each delay topic to its delay in ms. `partitions` maps each existing topic to its
    number of partitions. `dead_bytes_max` is the size limit of a dead letter, or None if unknown.
    """

    requeue: str
    dead: str
    delays: Mapping[str, int]
    partitions: Mapping[str, int] = field(default_factory=dict)
    dead_bytes_max: int | None = None

    def with_partitions(self, partitions: Mapping[str, int]) -> "Routes":
        """Returns a copy of these routes with new partition counts.

        `partitions` maps each existing topic to its number of partitions.
        """
        return replace(self, partitions=partitions)

    def target(self, waiting: DelayedRecord, now_ms: int) -> str:
        """Returns the topic to which a record goes from its delay topic: dead, requeue or delay."""
        if waiting.envelope is None:
            return self.dead
        remaining_ms = waiting.envelope.due_ms - now_ms
        return (
            self.requeue
            if remaining_ms <= 0
            else self._next_topic(remaining_ms, waiting.raw.topic())
        )

    def output(self, waiting: DelayedRecord, target: str, now_ms: int) -> Output:
        """Returns the record that is to be written to `target` for the record `waiting`.

        Raises KeyError if `partitions` does not have `target`: the topic is missing in Kafka, or
        no broker has answered yet.
        """
        raw, envelope = waiting.raw, waiting.envelope
        if envelope is None:
            return self._dead_letter(waiting, now_ms)
        headers = _forwarded_headers(envelope, waiting.headers, again=target != self.requeue)
        partition = envelope.source.partition % self.partitions[target]
        return Output(target, raw.key(), raw.value(), headers, partition=partition)

    def _dead_letter(self, waiting: DelayedRecord, now_ms: int) -> Output:
        """Returns a waiting record as a dead letter.

        If the dead letter is too large, leaves out the record's headers. If it is still too large,
        also leaves out the record's key and value.
        """
        raw, own = waiting.raw, carried(waiting.headers)
        at = Source(raw.topic(), raw.partition(), raw.offset(), raw.timestamp()[1])
        partition = raw.partition() % self.partitions[self.dead]

        def dead_letter(
            key: bytes | None, value: bytes | None, own: HeaderList, more: str
        ) -> Output:
            headers = [*own, *_dead_letter_headers(waiting.failure, at, more, now_ms)]
            return Output(self.dead, key, value, headers, partition=partition)

        whole = dead_letter(raw.key(), raw.value(), own, "")
        if self.dead_bytes_max is None or whole.size <= self.dead_bytes_max:
            return whole
        bare = dead_letter(raw.key(), raw.value(), [], NO_ROOM_FOR_HEADERS)
        return (
            bare
            if bare.size <= self.dead_bytes_max
            else dead_letter(None, None, [], no_room(*at.place))
        )

    def _next_topic(self, remaining_ms: int, here: str) -> str:
        """Returns the delay topic for the remaining time; `here` if no delay topic exists."""
        there = {ms: topic for topic, ms in self.delays.items() if topic in self.partitions}
        return there[next_delay(remaining_ms, there)] if there else here


def _forwarded_headers(envelope: Envelope, came: HeaderList, *, again: bool) -> HeaderList:
    """Returns the headers of a forwarded record; each of kworker's own headers occurs once.

    `came` are the headers that the record has in its delay topic. `again` is True if the record
    goes to another delay topic; only then does the result have the due time.
    """
    headers = list(envelope.carried)
    headers.append((SOURCE, str(envelope.source).encode()))
    headers.append((ATTEMPT, b"%d" % envelope.attempt))
    if envelope.redriven:
        headers.append((REDRIVEN, b"%d" % envelope.redriven))
    if envelope.replay:
        headers.append((REPLAY, envelope.replay))
    if again:
        headers.append((DUE, b"%d" % envelope.due_ms))
    errors = [header for header in came if header[0] == ERROR]
    return headers + errors[-1:]


def _dead_letter_headers(failure: Failure, at: Source, more: str, now_ms: int) -> HeaderList:
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


_OBJECT_BYTES = 800  # of memory that a record takes beside its payload
_HEADER_BYTES = 100  # and a header


def _header_bytes(headers: Iterable[tuple[str, bytes | None]]) -> int:
    sizes = (_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)
    return _OBJECT_BYTES + 2 * sum(sizes)  # as they came, and opened
