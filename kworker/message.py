"""The record that a handler is given."""

import json
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from kworker.core.message import Fields, Headers, RawMessage, Undecodable


class RunLimits(NamedTuple):
    """The number of runs that a record may have, and the nanoseconds of each; inf: no limit."""

    attempts: float
    timeout_ns: float


class Message:
    """One record of a source topic. Its attributes cannot be set.

    A field is read from the Kafka client's record only when the handler asks for it: most handlers
    use two fields, and to read all eight costs more than the run of a cheap handler.
    """

    __slots__ = ("_attempt", "_began_ns", "_limits", "_raw")

    _raw: RawMessage
    _attempt: int
    _limits: RunLimits
    _began_ns: int  # the monotonic time at which this run began

    def __init__(
        self,
        topic: str,
        partition: int = 0,
        offset: int = 0,
        timestamp: int = 0,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
        attempt: int = 1,
        last: bool = False,
    ) -> None:
        self._raw = Fields((topic, partition, offset), timestamp, key, value, headers)
        self._attempt = attempt
        self._limits = RunLimits(attempt if last else math.inf, math.inf)
        self._began_ns = 0

    @property
    def topic(self) -> str:
        """The source topic."""
        return self._raw.topic()

    @property
    def partition(self) -> int:
        return self._raw.partition()

    @property
    def offset(self) -> int:
        return self._raw.offset()

    @property
    def timestamp(self) -> int:
        """The record's timestamp in Kafka, in milliseconds since 1970."""
        return self._raw.timestamp()[1]

    @property
    def key(self) -> bytes | None:
        return self._raw.key()

    @property
    def value(self) -> bytes | None:
        return self._raw.value()

    @property
    def headers(self) -> Headers:
        """The headers in the order of the record; a name may occur more than once."""
        return tuple(self._raw.headers() or ())

    @property
    def attempt(self) -> int:
        """The number of this run of the record; 1 for the first."""
        return self._attempt

    @property
    def last(self) -> bool:
        """True if no attempt comes after this one."""
        return self._attempt >= self._limits.attempts

    def remaining(self) -> float:
        """Returns the seconds until `workers.handler_timeout` ends this run; never below 0."""
        passed_ns = time.monotonic_ns() - self._began_ns
        return max(0.0, (self._limits.timeout_ns - passed_ns) / 1e9)

    def json(self) -> Any:
        """Returns the value parsed as JSON; None for a null value.

        Raises Undecodable, a ValueError, if the value is not JSON or is nested too deeply. If the
        handler does not catch this error, the record becomes a dead letter at once.
        """
        value = self._raw.value()
        if value is None:
            return None
        try:
            return from_json(value, cache_strings="keys")  # a fifth of the time of `json.loads`
        except ValueError:
            return _parsed(value)

    def text(self) -> str | None:
        """Returns the value decoded as UTF-8; None for a null value.

        Raises Undecodable, a ValueError, if the value is not UTF-8. If the handler does not catch
        this error, the record becomes a dead letter at once.
        """
        value = self.value
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(f"the value is not UTF-8: {error}") from None

    def __repr__(self) -> str:
        return f"Message({self.topic}/{self.partition}/{self.offset}, attempt={self.attempt})"


class DeliveredMessage(Message):
    """A message as a worker makes it: its maker sets the attributes.

    A thread may set them anew for the next record, if nothing else refers to the message. Without a
    constructor written in Python, which is for people and costs more than they do.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    else:
        __init__ = object.__init__


def _parsed(value: bytes) -> Any:
    """Parses what `from_json` refuses: deep nesting, lone surrogates, and all but UTF-8."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"the value is not JSON: {error}") from None
