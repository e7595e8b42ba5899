"""The ends of a handler's run: returned values, exceptions, and the outcomes made of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kworker.core.batch import NotAttempted
from kworker.core.duration import parse_duration
from kworker.core.headers import SOURCE
from kworker.core.message import HeaderList, Headers


@dataclass(frozen=True, slots=True)
class Result:
    """One result with its own key, headers, table or topic.

    `value` is a dict, list, bytes, str, pydantic model or None (a tombstone). Without a `key`, the
    result gets the source record's key. `table` routes the result to those Spark tables whose
    `select` setting has the same text. `topic` sends the result to one of `delivery.topics` instead
    of the results topic.
    """

    value: Any
    key: bytes | str | None = None
    headers: Headers | dict[str, bytes | str | None] = ()
    table: str = ""
    topic: str = ""


class Retry(Exception):
    """Raised by a handler: try this record again, `after` a duration such as "30s".

    Raises ValueError for an `after` that is no duration.
    """

    # Defaults for a subclass whose __init__ does not call this one.
    after: str | None = None
    after_s: float | None = None

    def __init__(self, reason: str = "", after: str | None = None) -> None:
        super().__init__(reason)
        self.after = after
        self.after_s = None if after is None else parse_duration(after)


class Snooze(Exception):
    """Raised by a handler: run this record again `after` a duration, without counting an attempt.

    Raises ValueError for an `after` that is no duration.
    """

    # Defaults for a subclass whose __init__ does not call this one.
    after: str = "1s"
    after_s: float = 1.0

    def __init__(self, after: str, reason: str = "") -> None:
        super().__init__(reason)
        self.after = after
        self.after_s = parse_duration(after)


class Unavailable(Exception):
    """Raised by a handler: the dependency `name` is down, and no record is at fault."""

    name: str = "a dependency"  # default for a subclass whose __init__ does not call this one

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Reject(Exception):
    """Raised by a handler: this record can never succeed, and becomes a dead letter at once."""


class Unpublishable(Exception):
    """Raised for a result that cannot be written: not JSON, too large, or to an unknown topic.

    `outputs` has all outputs of the run if a later attempt to write them may succeed.
    """

    def __init__(self, reason: str, outputs: "Sequence[Output] | None" = None) -> None:
        super().__init__(reason)
        self.outputs = outputs


class TooLarge(Unpublishable):
    """Raised for a result over the size limit of its topic, as known to the worker."""


class Output:
    """One record to produce: its topic, key, value and headers."""

    __slots__ = ("key", "own", "partition", "size", "topic", "value")

    def __init__(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: HeaderList,
        size: int | None = None,
        partition: int = -1,
    ) -> None:
        """`size` is an upper bound of the record's bytes in a batch, if the caller has computed it.

        With `partition` -1 the key chooses the partition.
        """
        self.topic = topic
        self.key = key
        self.value = value
        self.partition = partition
        self.own: HeaderList | bytes = headers  # bytes in a `PlainResult` alone
        self.size = size_of(headers, key, value) if size is None else size

    @property
    def headers(self) -> HeaderList:
        """All headers, in the order in which they are written."""
        own = self.own
        return [(SOURCE, own)] if isinstance(own, bytes) else own


class PlainResult(Output):
    """The outcome of a run that ended well with one plain result; also the output itself.

    It is made for a value that a handler returned on a record's first run, if the record has no
    trace header. It has the record's key, and no header but the source header, whose value is in
    `own`. The usual result is such. A tuple of outputs with lists of headers would cost twice as
    much.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    else:
        __init__ = object.__init__


def plain_result(
    topic: str, key: bytes | None, value: bytes, source: bytes, size: int
) -> PlainResult:
    """Makes a `PlainResult`.

    Python 3.11 calls a constructor written in Python more slowly than this function.
    """
    output = PlainResult()
    output.topic = topic
    output.key = key
    output.value = value
    output.partition = -1
    output.own = source
    output.size = size
    return output


def size_of(headers: HeaderList, key: bytes | None, value: bytes | None) -> int:
    """Returns an upper bound of a record's bytes in a record batch."""
    return RECORD_OVERHEAD + len(key or b"") + len(value or b"") + size_of_headers(headers)


def size_of_headers(headers: HeaderList) -> int:
    """Returns an upper bound of the bytes of headers in a record batch."""
    size = 0
    for name, content in headers:
        size += _HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


RECORD_OVERHEAD = 128  # batch header 61, record varints up to 21, and room for the next version
_HEADER_OVERHEAD = 8  # two varint lengths


class Outputs(tuple[Output, ...]):
    """The outputs of a record, which is settled once all of them are in Kafka.

    The class itself is a tuple, since an object around a tuple would double the cost.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"


class Results(Outputs):
    """The outcome of a run that ended well: the outputs are the handler's results.

    One result is often a `PlainResult` instead.
    """

    __slots__ = ()


class RetryScheduled(Outputs):
    """The outcome of a failed run, if the record is to run again later.

    The output goes to a delay topic.
    """

    __slots__ = ()


class DeadLettered(Outputs):
    """The outcome of a record that failed for good: the output is its dead letter."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of a run that raised, or of a record that kworker could not run."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Skipped:
    """The outcome of a record for which nothing is run or published: a duplicate or a tombstone."""

    why: Literal["duplicate", "tombstone"]


DUPLICATE = Skipped("duplicate")
"""The outcome of a record whose event was done before."""
TOMBSTONE = Skipped("tombstone")
"""The outcome of a record without a value, if the configuration skips such records."""
NO_RESULTS = Results(())
"""The outcome of a handler that returned None: settled at once."""


Succeeded = Results | PlainResult
"""The outcomes of a run that ended well."""
Publishable = Results | PlainResult | RetryScheduled | DeadLettered
"""The outcomes that may have outputs: the record is settled once all of these are in Kafka."""
Outcome = Publishable | Failed | Skipped | NotAttempted


def outputs_of(outcome: Publishable) -> Sequence[Output]:
    """Returns the outputs of an outcome. Hot paths inline this for speed."""
    return (outcome,) if isinstance(outcome, PlainResult) else outcome


@dataclass(frozen=True, slots=True)
class OnDeadCall:
    """An order to the handler pool: call the handler's `dead` method with `error`.

    The outcome is then the dead letter `letter`, whatever `dead` does or raises.
    """

    error: BaseException
    letter: DeadLettered
