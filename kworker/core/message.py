"""A record as the Kafka client delivers it."""

from collections.abc import Sequence
from typing import Any, Protocol

Headers = tuple[tuple[str, bytes | None], ...]
PartitionId = tuple[str, int]
"""Topic and number of a partition."""

HeaderList = list[tuple[str, bytes | None]]


class Undecodable(ValueError):
    """Raised for a value that can never be decoded: its record becomes a dead letter."""


class RawMessage(Protocol):
    """A record as the Kafka client, or its in-memory substitute, delivers it."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def error(self) -> Any: ...
    def __len__(self) -> int: ...


class Fields:
    """A `RawMessage` made of given values, independent of the Kafka client."""

    __slots__ = ("_headers", "_key", "_position", "_timestamp", "_value")

    def __init__(
        self,
        position: tuple[str, int, int],
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> None:
        self._position = position
        self._timestamp = timestamp
        self._key = key
        self._value = value
        self._headers = headers

    def topic(self) -> str:
        return self._position[0]

    def partition(self) -> int:
        return self._position[1]

    def offset(self) -> int:
        return self._position[2]

    def timestamp(self) -> tuple[int, int]:
        return (1, self._timestamp)

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self._headers) or None

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._value or b"")


NO_HEADERS = "its headers cannot be read and are not copied"
"""Text in the dead letter of a record whose headers the client cannot decode."""


def headers_of(
    raws: Sequence[RawMessage],
) -> tuple[list[HeaderList | None], dict[int, Exception]]:
    """Returns the headers of each record; None if the client cannot decode a record's headers.

    All records must come from the same client. The second value has the client's exception for each
    None, by the index of the record.

    `headers()` must be called only once for each record. If the client cannot decode the headers, a
    second call returns a list that crashes the process when it is read. `map` makes the calls,
    because a call written in Python is not safe. The interpreter specialises (optimises) such a
    call after some runs. After that, even the first call for a record may return the list that
    crashes, and the client's exception is raised at some later line (measured on 3.11).
    """
    headers: list[HeaderList | None] = []
    raised: dict[int, Exception] = {}
    calls = map(type(raws[0]).headers, raws)
    while len(headers) < len(raws):
        try:
            headers.extend(calls)
        except Exception as error:  # noqa: BLE001 - becomes the dead letter of that record
            raised[len(headers)] = error
            headers.append(None)
    return headers, raised


def with_headers(raw: RawMessage, headers: Headers) -> RawMessage:
    """Returns a copy of a record with `headers` instead of its own, which are not read."""
    position, stamp = (raw.topic(), raw.partition(), raw.offset()), raw.timestamp()[1]
    return Fields(position, stamp, raw.key(), raw.value(), headers)
