"""kworker's headers: their names, and the envelope that a record has in kworker's topics."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kworker.core.message import HeaderList

SOURCE = "kworker-source"  # topic, partition, offset, timestamp in ms, with / between
INDEX = "kworker-index"  # of several results of one record
TABLE = "kworker-table"
ATTEMPT = "kworker-attempt"  # of the next run; in a dead letter, of the last one
DUE = "kworker-due"  # ms since 1970: not to be run before
ERROR = "kworker-error"
FAILED_AT = "kworker-failed-at"  # ms since 1970
REASON = "kworker-reason"
EXCEPTION = "kworker-exception"
MESSAGE = "kworker-message"
STACKTRACE = "kworker-stacktrace"
REDRIVEN = "kworker-redriven"  # times
REPLAY = "kworker-replay"
TRACE = "traceparent"  # the one user header that results copy
# For tools that read other frameworks' dead letters.
FOREIGN_TOPIC = "kafka_dlt-original-topic"
FOREIGN_EXCEPTION = "kafka_dlt-exception-fqcn"

NO_ROOM_FOR_HEADERS = "; its own headers have no room in the dead-letter topic and are not copied"
"""The end of a dead letter's message if the record's headers do not fit."""
_OWN = "kworker-"
_CARRIED = "kworker-in-"  # the user's own header of a reserved name, while kworker has the record
COUNT_MAX = 1_000_000
"""The highest number of attempts, and of times redriven."""
OFFSET_BITS = 48
"""Bits of an offset: more than any partition needs, and as many as the scoreboard holds."""
DUE_MS_MAX = 253_402_300_799_999
"""The last millisecond that a calendar can name: the end of the year 9999."""
_PARTITION_MAX = (1 << 31) - 1
_TIME_MS_MAX = (1 << 63) - 1  # of a source timestamp, which may be any number, before 1970 as well
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # as brokers name them
_WHOLE = re.compile(rb"-?[0-9]{1,19}")  # as kworker writes them


class Forged(ValueError):
    """Raised if kworker did not write the headers of a record in one of its own topics."""


SourcePosition = tuple[str, int, int]
"""Topic, partition and offset of a record in its source topic."""


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a record in its source topic, and its timestamp there, in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    def __str__(self) -> str:
        """Returns the value of the header `kworker-source`."""
        return f"{self.topic}/{self.partition}/{self.offset}/{self.timestamp}"

    @property
    def place(self) -> tuple[str, int, int]:
        """The topic, partition and offset, without the timestamp."""
        return self.topic, self.partition, self.offset

    @classmethod
    def parse(cls, text: bytes) -> "Source":
        """Parses a value of the header `kworker-source`. Raises Forged for any other text."""
        parts = text.rsplit(b"/", 3)
        if len(parts) == 4 and (topic := _topic(parts[0])):
            partition = _whole(parts[1], 0, _PARTITION_MAX)
            offset = _whole(parts[2], 0, (1 << OFFSET_BITS) - 1)
            timestamp = _whole(parts[3], -_TIME_MS_MAX - 1, _TIME_MS_MAX)
            if partition is not None and offset is not None and timestamp is not None:
                return cls(topic, partition, offset, timestamp)
        raise Forged(f"the header {SOURCE} is not topic/partition/offset/timestamp: {text[:200]!r}")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The headers of a record in one of kworker's topics: kworker's, and the user's own.

    `carried` are the user's headers as kworker's topics hold them, with `kworker-…` renamed to
    `kworker-in-…`; the property `restored` has them under their original names. `replay` is the id
    of a replay, if the record failed in that replay and was redriven from its dead letter.
    """

    source: Source
    attempt: int
    redriven: int
    due_ms: int
    carried: HeaderList
    replay: bytes = b""

    @property
    def restored(self) -> HeaderList:
        return restored(self.carried)

    @classmethod
    def open(cls, headers: Iterable[tuple[str, bytes | None]]) -> "Envelope":
        """Reads the headers of a record in a delay, requeue or dead-letter topic.

        Raises Forged if kworker's headers among them are missing, or not as kworker writes them.
        """
        own, carried = parted(headers)
        if SOURCE not in own:
            raise Forged(f"the header {SOURCE} is missing")
        return cls(
            Source.parse(own[SOURCE]),
            _number(own, ATTEMPT, 1, COUNT_MAX),
            _number(own, REDRIVEN, 0, COUNT_MAX),
            _number(own, DUE, 0, DUE_MS_MAX),
            carried,
            own.get(REPLAY, b""),
        )


def no_room(topic: str, partition: int, offset: int) -> str:
    """Returns a text about a record that is too large for the dead-letter topic.

    The text says at which position the record stays. It ends the error message of the record's dead
    letter, which has no copy of the record.
    """
    place = f"{topic}/{partition}/{offset}"
    return f"; it has no room in the dead-letter topic and stays at {place}"


def trace_of(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Returns the value of the first header `traceparent`; b"" without one."""
    return next((value or b"" for name, value in headers if name == TRACE), b"")


def is_traced(headers: HeaderList | None) -> bool:
    """Returns True if there is a header `traceparent`, which the outputs of the record carry."""
    return bool(headers) and any(name == TRACE for name, _ in headers or ())


def with_trace(headers: HeaderList, traceparent: bytes) -> HeaderList:
    """Returns `headers` with exactly one header `traceparent`, which has the given value.

    It stands where the first such header stood, or at the end if there was none.
    """
    at = next((i for i, (name, _) in enumerate(headers) if name == TRACE), len(headers))
    others = [header for header in headers if header[0] != TRACE]
    return [*others[:at], (TRACE, traceparent), *others[at:]]


def parted(headers: Iterable[tuple[str, bytes | None]]) -> tuple[dict[str, bytes], HeaderList]:
    """Returns kworker's own headers by name, and all others unchanged, `kworker-in-…` included."""
    own: dict[str, bytes] = {}
    others: HeaderList = []
    for name, value in headers:
        if name.startswith(_OWN) and not name.startswith(_CARRIED):
            own[name] = value or b""
        else:
            others.append((name, value))
    return own, others


def carried(headers: Iterable[tuple[str, bytes | None]]) -> HeaderList:
    """Returns a source record's headers, renamed so that none can pass for kworker's own."""
    return [
        (_CARRIED + name.removeprefix(_OWN) if name.startswith(_OWN) else name, value)
        for name, value in headers
    ]


def restored(headers: Iterable[tuple[str, bytes | None]]) -> HeaderList:
    """Reverses `carried`: returns the headers under their original names."""
    return [
        (_OWN + name.removeprefix(_CARRIED) if name.startswith(_CARRIED) else name, value)
        for name, value in headers
    ]


def without_foreign(headers: HeaderList) -> HeaderList:
    """Returns a dead letter's headers without the two that kworker added for other tools.

    Removes only the last header of each of the two names: earlier ones are the original record's.
    """
    kept = list(headers)
    for name in (FOREIGN_TOPIC, FOREIGN_EXCEPTION):
        found = [i for i, (own, _) in enumerate(kept) if own == name]
        if found:
            del kept[found[-1]]
    return kept


def _number(own: dict[str, bytes], name: str, least: int, most: int) -> int:
    """Returns a header's number; `least` without the header. Raises Forged if out of range."""
    if name not in own:
        return least
    if (number := _whole(own[name], least, most)) is None:
        raise Forged(
            f"the header {name} is not a number from {least} to {most}: {own[name][:200]!r}"
        )
    return number


def _whole(text: bytes, least: int, most: int) -> int | None:
    """Returns the number in `text`; None unless it is a whole number from `least` to `most`."""
    if not _WHOLE.fullmatch(text):
        return None
    number = int(text)
    return number if least <= number <= most else None


def _topic(text: bytes) -> str:
    """Returns the topic name in `text`; "" if it cannot be one."""
    name = text.decode(errors="replace")
    return name if _TOPIC.fullmatch(name) else ""
