"""kworker's headers: their names, and what a record carries from topic to topic."""

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

_OWN = "kworker-"
_CARRIED = "kworker-in-"  # the user's own header of a reserved name, while kworker has the record
_ATTEMPT_MAX = 1_000_000


class Forged(ValueError):
    """A record in one of kworker's topics whose headers kworker did not write."""


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
        """Raises Forged."""
        try:
            topic, partition, offset, timestamp = text.decode().rsplit("/", 3)
            source = cls(topic, int(partition), int(offset), int(timestamp))
        except (ValueError, UnicodeDecodeError):
            raise Forged(f"{SOURCE} {text[:200]!r}") from None
        if not topic or source.partition < 0 or source.offset < 0:
            raise Forged(f"{SOURCE} {text[:200]!r}")
        return source


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
            max(1, min(_number(own, ATTEMPT, 1), _ATTEMPT_MAX)),
            max(0, _number(own, REDRIVEN, 0)),
            _number(own, DUE, 0),
            carried,
        )


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


def _number(own: dict[str, bytes], name: str, default: int) -> int:
    try:
        return int(own.get(name, default))
    except ValueError:
        raise Forged(f"{name} {own[name][:200]!r}") from None
