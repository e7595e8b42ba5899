"""kworker's headers: their names, and what a record carries from topic to topic."""

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
"""What a dead letter's message ends with that cannot have all of its record."""
_OWN = "kworker-"
_CARRIED = "kworker-in-"  # the user's own header of a reserved name, while kworker has the record
COUNT_MAX = 1_000_000
"""Of attempts, and of times redriven."""
OFFSET_BITS = 48
"""Of an offset: more than any partition has, and what the scoreboard has room for."""
DUE_MS_MAX = 253_402_300_799_999
"""The last millisecond that a calendar can name: the end of the year 9999."""
_PARTITION_MAX = (1 << 31) - 1
_TIME_MS_MAX = (1 << 63) - 1  # of a source: whatever its producer wrote, before 1970 as well
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # as brokers name them
_WHOLE = re.compile(rb"-?[0-9]{1,19}")  # as kworker writes them


class Forged(ValueError):
    """A record in one of kworker's topics whose headers kworker did not write."""


SourcePosition = tuple[str, int, int]
"""Topic, partition and offset of a record in its source topic."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a record comes from first: position and timestamp (ms) in its source topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    def __str__(self) -> str:
        """As in a header."""
        return f"{self.topic}/{self.partition}/{self.offset}/{self.timestamp}"

    @property
    def place(self) -> tuple[str, int, int]:
        """The position alone."""
        return self.topic, self.partition, self.offset

    @classmethod
    def parse(cls, text: bytes) -> "Source":
        """Raises Forged for what is none, or no broker could hold."""
        parts = text.rsplit(b"/", 3)
        if len(parts) == 4 and (topic := _topic(parts[0])):
            partition = _whole(parts[1], 0, _PARTITION_MAX)
            offset = _whole(parts[2], 0, (1 << OFFSET_BITS) - 1)
            timestamp = _whole(parts[3], -_TIME_MS_MAX - 1, _TIME_MS_MAX)
            if partition is not None and offset is not None and timestamp is not None:
                return cls(topic, partition, offset, timestamp)
        raise Forged(f"{SOURCE} {text[:200]!r}")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What kworker's headers say of a record that comes again, and the user's own headers.

    `carried` is what goes on with the record to the next of kworker's topics: the user's
    headers, those of reserved names under `kworker-in-…`; `restored` is what the user wrote.
    """

    source: Source
    attempt: int
    redriven: int
    due_ms: int
    carried: HeaderList

    @property
    def restored(self) -> HeaderList:
        return restored(self.carried)

    @classmethod
    def open(cls, headers: Iterable[tuple[str, bytes | None]]) -> "Envelope":
        """Reads the headers of a record in a retry, requeue or dead-letter topic. Raises Forged."""
        own: dict[str, bytes] = {}
        carried: HeaderList = []
        for name, value in headers:
            if name.startswith(_OWN) and not name.startswith(_CARRIED):
                own[name] = value or b""
            else:
                carried.append((name, value))
        if SOURCE not in own:
            raise Forged(f"no {SOURCE}")
        return cls(
            Source.parse(own[SOURCE]),
            _number(own, ATTEMPT, 1, COUNT_MAX),
            _number(own, REDRIVEN, 0, COUNT_MAX),
            _number(own, DUE, 0, DUE_MS_MAX),
            carried,
        )


def no_room(topic: str, partition: int, offset: int) -> str:
    """The same of a stranger's record that has no room at all, and is where it is for ever."""
    place = f"{topic}/{partition}/{offset}"
    return f"; it has no room in the dead-letter topic and stays at {place}"


def carried(headers: Iterable[tuple[str, bytes | None]]) -> HeaderList:
    """A source record's headers as kworker's topics carry them: none can pass for kworker's own."""
    return [
        (_CARRIED + name.removeprefix(_OWN) if name.startswith(_OWN) else name, value)
        for name, value in headers
    ]


def restored(headers: Iterable[tuple[str, bytes | None]]) -> HeaderList:
    """The reverse of `carried`."""
    return [
        (_OWN + name.removeprefix(_CARRIED) if name.startswith(_CARRIED) else name, value)
        for name, value in headers
    ]


def without_foreign(headers: HeaderList) -> HeaderList:
    """A dead letter's carried headers without the two that kworker added for other tools.

    Those are the last of their names: the record itself may have had some, too.
    """
    kept = list(headers)
    for name in (FOREIGN_TOPIC, FOREIGN_EXCEPTION):
        found = [i for i, (own, _) in enumerate(kept) if own == name]
        if found:
            del kept[found[-1]]
    return kept


def _number(own: dict[str, bytes], name: str, least: int, most: int) -> int:
    """`least` where it is absent. Raises Forged for what is out of range."""
    if name not in own:
        return least
    if (number := _whole(own[name], least, most)) is None:
        raise Forged(f"{name} {own[name][:200]!r}")
    return number


def _whole(text: bytes, least: int, most: int) -> int | None:
    """None for what is no number in that range."""
    if not _WHOLE.fullmatch(text):
        return None
    number = int(text)
    return number if least <= number <= most else None


def _topic(text: bytes) -> str:
    """Empty for what cannot be a topic's name."""
    name = text.decode(errors="replace")
    return name if _TOPIC.fullmatch(name) else ""
