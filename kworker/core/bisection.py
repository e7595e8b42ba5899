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

    So a record is in at most 1 + ⌈log2 size⌉ parts. Of a part that raises `Unavailable`
    the first record is asked alone before the halves of the others: it may be the matter
    of one customer among them. When two alone have raised it, with no call between them
    that did not, the service is down: `down` is what all that is left ends with.
    """

    def __init__(self, records: Sequence[_Record]) -> None:
        self._parts = [records] if records else []
        self._turned_away = 0  # records that raised Unavailable alone, one after the other
        self.down: Unavailable | None = None

    def next(self) -> Sequence[_Record]:
        """The records to run now, or to end if it is `down`; none when all have ended."""
        return self._parts.pop() if self._parts else ()

    def returned(self, part: Sequence[_Record], value: Any) -> Ends:
        """How each record of a part ended that returned this."""
        self._turned_away = 0
        return returned(len(part), value)

    def raised(self, part: Sequence[_Record], error: BaseException) -> Ends:
        """How each record of a part ended that raised; nothing when others must tell."""
        if isinstance(error, Unavailable):
            return self._unavailable(part, error)
        self._turned_away = 0
        if isinstance(error, BatchFailed):
            return ends_around(error, len(part))
        if len(part) == 1:
            return [error]
        self._halve(part)
        return []

    def _unavailable(self, part: Sequence[_Record], error: Unavailable) -> Ends:
        if len(part) > 1:
            self._halve(part[1:])
            self._parts.append(part[:1])
            return []
        self._turned_away += 1
        if self._turned_away > 1:
            self.down = error
        elif self._parts:
            # Not the next, but the last: what one customer sent often came together.
            furthest = self._parts[0]
            self._parts[:1] = [furthest[:-1]] if len(furthest) > 1 else []
            self._parts.append(furthest[-1:])
        return [error]

    def _halve(self, part: Sequence[_Record]) -> None:
        half = (len(part) + 1) // 2
        self._parts += [part[half:], part[:half]] if half < len(part) else [part]


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
