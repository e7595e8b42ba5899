"""Which records of a batch run together, until each has ended once."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from kworker.core.batch import NOT_ATTEMPTED, BatchFailed
from kworker.core.outcome import Unavailable

_Record = TypeVar("_Record")
Ends = list[Any]
"""For each record what a handler may return for it, or NOT_ATTEMPTED."""


class Bisection(Generic[_Record]):
    """One batch, in parts: a part that raises is halved.

    So a record is in at most 1 + ⌈log2 size⌉ parts, one of each size.
    """

    def __init__(self, records: Sequence[_Record]) -> None:
        self._parts = [records] if records else []

    def next(self) -> Sequence[_Record]:
        """The records to run now; none when all have ended."""
        return self._parts.pop() if self._parts else ()

    def raised(self, part: Sequence[_Record], error: BaseException) -> Ends:
        """How each record of a part ended that raised; nothing when its halves must tell."""
        if isinstance(error, BatchFailed):
            return ends_around(error, len(part))
        if len(part) == 1 or isinstance(error, Unavailable):
            return [error] * len(part)
        half = (len(part) + 1) // 2
        self._parts += [part[half:], part[:half]]
        return []


def returned(size: int, value: Any) -> Ends:
    """How each of `size` records ended of which a handler returned this."""
    if not isinstance(value, list | tuple):
        what = type(value).__name__
    elif len(value) != size:
        what = f"{len(value)} outcomes"
    else:
        return list(value)
    return [TypeError(f"the batch handler returned {what} for {size} records")] * size


def ends_around(failed: BatchFailed, size: int) -> Ends:
    """How each of `size` records ended of which one is known to have failed."""
    index = failed.index
    if not 0 <= index < size:
        return [IndexError(f"BatchFailed tells of record {index} in a batch of {size}")] * size
    return [*[None] * index, failed.cause, *[NOT_ATTEMPTED] * (size - index - 1)]
