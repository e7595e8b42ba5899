"""A record as the Kafka client delivers it."""

from collections.abc import Sequence
from typing import Any, Protocol

Headers = tuple[tuple[str, bytes | None], ...]
PartitionId = tuple[str, int]
"""Topic and number of a partition."""

HeaderList = list[tuple[str, bytes | None]]


class Undecodable(ValueError):
    """The value is not what it should be: poison, since it will never be."""


class RawMessage(Protocol):
    """A record as the Kafka client, or its twin, delivers it."""

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
    """A record made of plain values: what tests and twins hand over as a `RawMessage`."""

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
"""What a dead letter says of a record that the client cannot tell the headers of."""


def headers_of(
    raws: Sequence[RawMessage],
) -> tuple[list[HeaderList | None], dict[int, Exception]]:
    """The headers of records of one client, and by index what it raised instead of some.

    Each record is asked once: the client, asked again for headers that it cannot decode,
    returns a list that ends the process of whoever looks at it. And not by a call in Python's
    own code: there it returns such a list the first time already, once the interpreter has
    specialised the call, and what it raised appears at the next best line (measured on 3.11).
    """
    headers: list[HeaderList | None] = []
    raised: dict[int, Exception] = {}
    asking = map(type(raws[0]).headers, raws)
    while len(headers) < len(raws):
        try:
            headers.extend(asking)
        except Exception as error:  # noqa: BLE001 - becomes the dead letter of that record
            raised[len(headers)] = error
            headers.append(None)
    return headers, raised


def without_headers(raw: RawMessage) -> RawMessage:
    """Stands in for a record whose headers nobody may ask for again."""
    position, stamp = (raw.topic(), raw.partition(), raw.offset()), raw.timestamp()[1]
    return Fields(position, stamp, raw.key(), raw.value(), ())
