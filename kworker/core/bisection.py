"""Which records of a batch run together, until each has ended once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kworker.core.batch import NOT_ATTEMPTED, BatchFailed
from kworker.core.outcome import Unavailable

_Record = TypeVar("_Record")
PartOutcomes = list[Any]
"""For each record what a handler may return for it, or NOT_ATTEMPTED."""


@dataclass(frozen=True, slots=True)
class _Doubted(Generic[_Record]):
    """What is left of a part that raised `Unavailable`, while some of it are asked alone."""

    records: Sequence[_Record]
    turned_away: bool = False  # one was


class Bisection(Generic[_Record]):
    """One batch, in parts: a part that raises is halved.

    So a record is in at most 1 + ⌈log2 size⌉ parts. A part that raises `Unavailable` may do
    so for one customer's sake, so before its halves its first record is asked alone, and if
    that raises it too, another. When both do, the service is down: the rest of the part is
    given up.
    """

    def __init__(self, records: Sequence[_Record]) -> None:
        self._parts: list[Sequence[_Record] | _Doubted[_Record]] = [records] if records else []
        self.given_up: Sequence[_Record] = ()  # by what was raised last; not attempted

    def next(self) -> Sequence[_Record]:
        """The records to run now; none when all have ended or are given up."""
        while self._parts:
            part = self._parts.pop()
            if not isinstance(part, _Doubted):
                return part
            self._halve(part.records)
        return ()

    def raised(self, part: Sequence[_Record], error: BaseException) -> PartOutcomes:
        """How each record of a part ended that raised; nothing when smaller ones must tell."""
        self.given_up = ()
        if isinstance(error, BatchFailed):
            return ends_around(error, len(part))
        if len(part) == 1:
            if isinstance(error, Unavailable):
                self._turned_away()
            return [error]
        if isinstance(error, Unavailable):
            self._parts += [_Doubted(part[1:]), part[:1]]
        else:
            self._halve(part)
        return []

    def _turned_away(self) -> None:
        """One alone; if that was asked for the others' sake, they are what was put off last."""
        doubted = self._parts[-1] if self._parts else None
        if not isinstance(doubted, _Doubted):
            return
        self._parts.pop()
        if doubted.turned_away:
            self.given_up = doubted.records
            return
        # Not the next record: what one customer sent often came together.
        middle = len(doubted.records) // 2
        rest = [*doubted.records[:middle], *doubted.records[middle + 1 :]]
        self._parts += [_Doubted(rest, turned_away=True), doubted.records[middle : middle + 1]]

    def _halve(self, part: Sequence[_Record]) -> None:
        half = (len(part) + 1) // 2
        self._parts += [each for each in (part[half:], part[:half]) if each]


def returned(size: int, value: Any) -> PartOutcomes:
    """How each of `size` records ended of which a handler returned this."""
    if not isinstance(value, list | tuple):
        what = type(value).__name__
    elif len(ends := list(value)) != size:
        what = f"{len(ends)} outcomes"
    else:
        return ends
    return [TypeError(f"the batch handler returned {what} for {size} records")] * size


def ends_around(failed: BatchFailed, size: int) -> PartOutcomes:
    """How each of `size` records ended of which one is known to have failed."""
    index, cause, results = failed.index, failed.cause, failed.results
    if not isinstance(index, int) or not 0 <= index < size:
        return [IndexError(f"BatchFailed tells of record {index!r} in a batch of {size}")] * size
    before = [NOT_ATTEMPTED] * index if results is None else results
    own = cause if isinstance(cause, BaseException) else failed
    return [*before, own, *[NOT_ATTEMPTED] * (size - index - 1)]
