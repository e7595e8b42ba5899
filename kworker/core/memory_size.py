"""The approximate memory that records take, by which back-pressure counts them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kworker.core.message import HeaderList, RawMessage

_OBJECT_BYTES = 400  # what a record costs beside its payload
_HEADER_BYTES = 100  # and a header


def sizes_of(
    raws: Sequence[RawMessage],
    keys: Sequence[bytes | None],
    headers: Sequence[HeaderList | None],
) -> list[int]:
    """Returns the approximate size of each record in memory, in bytes."""
    both = zip(raws, keys, strict=True)
    sizes = [len(raw) + (len(key) if key else 0) + _OBJECT_BYTES for raw, key in both]
    if any(headers):
        sizes = [size + _size(own or ()) for size, own in zip(sizes, headers, strict=True)]
    return sizes


class Together(NamedTuple):
    """The sum of the sizes of some records, and a size that none of them exceeds, in bytes."""

    total: int
    most: int


def size_together(
    raws: Sequence[RawMessage],
    keys: Sequence[bytes | None],
    headers: Sequence[HeaderList | None],
) -> Together:
    """Returns the sum of what `sizes_of` returns, faster."""
    values, present = list(map(len, raws)), list(map(len, filter(None, keys)))
    given = [
        sum([len(name) + len(value or b"") + _HEADER_BYTES for name, value in own])
        for own in headers
        if own
    ]
    total = sum(values) + sum(present) + sum(given) + _OBJECT_BYTES * len(raws)
    most = max(values) + max(present, default=0) + max(given, default=0) + _OBJECT_BYTES
    return Together(total, most)


def _size(headers: Iterable[tuple[str, bytes | None]]) -> int:
    return sum(len(name) + len(value or b"") + _HEADER_BYTES for name, value in headers)
