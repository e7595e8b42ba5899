"""How a run of a handler can end: what it returns, what it raises, what kworker makes of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kworker.core.batch import NotAttempted
from kworker.core.duration import parse_duration
from kworker.core.headers import SOURCE
from kworker.core.message import HeaderList, Headers


@dataclass(frozen=True, slots=True)
class Result:
    """One result with a say in where it goes.

    `value` is a dict, list, bytes, str, pydantic model or None (a tombstone). The key
    is the source's unless given. `table` routes it to the Spark table that selects it;
    `topic` sends it to one of `delivery.topics` instead of the results topic.
    """

    value: Any
    key: bytes | str | None = None
    headers: Headers | dict[str, bytes | str | None] = ()
    table: str = ""
    topic: str = ""


class Retry(Exception):
    """Raised by a handler: try this record again, `after` a duration such as "30s".

    ValueError for an `after` that is none.
    """

    # What holds for a subclass whose __init__ does not call this one.
    after: str | None = None
    after_s: float | None = None

    def __init__(self, reason: str = "", after: str | None = None) -> None:
        super().__init__(reason)
        self.after = after
        self.after_s = None if after is None else parse_duration(after)


class Snooze(Exception):
    """Raised by a handler: not now; again `after` a duration, and no attempt is counted.

    ValueError for an `after` that is none.
    """

    # What holds for a subclass whose __init__ does not call this one.
    after: str = "1s"
    after_s: float = 1.0

    def __init__(self, after: str, reason: str = "") -> None:
        super().__init__(reason)
        self.after = after
        self.after_s = parse_duration(after)


class Unavailable(Exception):
    """Raised by a handler: the dependency `name` is down, which is nobody's fault."""

    name: str = "a dependency"  # for a subclass whose __init__ does not call this one

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Reject(Exception):
    """Raised by a handler: this record will never work."""


class Unpublishable(Exception):
    """A result that cannot be written: not serialisable, too large, or to an unknown topic.

    `outputs` are all that the run led to, if they may be written after all.
    """

    def __init__(self, reason: str, outputs: "Sequence[Output] | None" = None) -> None:
        super().__init__(reason)
        self.outputs = outputs


class TooLarge(Unpublishable):
    """A result over its topic's limit, as that was known."""


class Output:
    """One record to produce, ready: bytes and a topic."""

    __slots__ = ("key", "own", "partition", "size", "topic", "value")

    def __init__(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: HeaderList | bytes,
        size: int | None = None,
        partition: int = -1,
    ) -> None:
        """Bytes as `headers` are the source alone: thousands wait, and lists cost more.

        They are for the only result of a record that has no headers, and has this key.

        `size` is an upper bound of its bytes in a batch, from a caller who has counted;
        without a `partition` the key decides.
        """
        self.topic = topic
        self.key = key
        self.value = value
        self.partition = partition
        self.own = headers
        self.size = size_of(self.headers, key, value) if size is None else size

    @property
    def headers(self) -> HeaderList:
        """In order, as they are written."""
        own = self.own
        return [(SOURCE, own)] if isinstance(own, bytes) else own


def size_of(headers: HeaderList, key: bytes | None, value: bytes | None) -> int:
    """An upper bound of a record's bytes in a record batch."""
    size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += _HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


RECORD_OVERHEAD = 128  # batch header 61, record varints up to 21, and room for the next version
_HEADER_OVERHEAD = 8  # two varint lengths


class Publishable:
    """An outcome that is settled once all its outputs are in Kafka."""

    __match_args__ = ("outputs",)
    __slots__ = ("outputs",)

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.outputs = outputs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.outputs!r})"


class Results(Publishable):
    """The handler ended well, and its results are the outputs."""

    __slots__ = ()


class RetryScheduled(Publishable):
    """The run failed, and another follows: the output goes to a delay topic."""

    __slots__ = ()


class DeadLettered(Publishable):
    """The record failed for good: the output is its dead letter."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The run raised, or kworker could not let it run."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Skipped:
    """The event was processed before, or elsewhere: nothing to run or to publish."""


SKIPPED = Skipped()
NO_RESULTS = Results(())
"""The outcome of a handler that returned None: settled at once."""


Outcome = Results | RetryScheduled | DeadLettered | Failed | Skipped | NotAttempted


@dataclass(frozen=True, slots=True)
class OnDeadCall:
    """An order to the pool: the handler's `dead` hears of `error`, then the letter is the outcome.

    `dead` may do what it likes: the letter is written all the same.
    """

    error: BaseException
    letter: DeadLettered
