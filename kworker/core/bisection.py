"""The bisection of a batch that raises: smaller parts run until each record has ended once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kworker.core.batch import NOT_ATTEMPTED, BatchFailed
from kworker.core.outcome import Unavailable

_Record = TypeVar("_Record")
PartOutcomes = list[Any]
"""For each record a value that a handler may return, or NOT_ATTEMPTED."""


@dataclass(frozen=True, slots=True)
class _AwaitingProbe(Generic[_Record]):
    """The waiting records of one part of a batch: the run of this part raised `Unavailable`.

    They wait while another record of the same part runs alone, as a probe.
    """

    records: Sequence[_Record]
    probe_failed: bool = False  # one probe raised `Unavailable`, too


class Bisection(Generic[_Record]):
    """One batch that is run in parts: a part whose run raises is halved.

    So a record is in at most 1 + ⌈log2 size⌉ parts. If a part raises `Unavailable`, a dependency is
    down, which may be so for some of the records only. So before that part is halved, its first
    record runs alone, as a probe. If the probe raises `Unavailable`, too, a second record runs
    alone. If this one also raises `Unavailable`, the rest of the part is given up: `given_up` has
    these records, and they do not run again in this batch.
    """

    def __init__(self, records: Sequence[_Record]) -> None:
        self._parts: list[Sequence[_Record] | _AwaitingProbe[_Record]] = (
            [records] if records else []
        )
        self.given_up: Sequence[_Record] = ()  # after the last exception; not attempted

    def next(self) -> Sequence[_Record]:
        """Returns the records to run now; an empty sequence if all have ended or are given up."""
        while self._parts:
            part = self._parts.pop()
            if not isinstance(part, _AwaitingProbe):
                return part
            self._halve(part.records)
        return ()

    def raised(self, part: Sequence[_Record], error: BaseException) -> PartOutcomes:
        """Returns the outcomes of the records in a part of the batch whose run raised `error`.

        Returns [] if these records run again in smaller parts.
        """
        self.given_up = ()
        if isinstance(error, BatchFailed):
            return ends_around(error, len(part))
        if len(part) == 1:
            if isinstance(error, Unavailable):
                self._probe_raised()
            return [error]
        if isinstance(error, Unavailable):
            self._parts += [_AwaitingProbe(part[1:]), part[:1]]
        else:
            self._halve(part)
        return []

    def _probe_raised(self) -> None:
        """Notes that a record which ran alone has raised `Unavailable`.

        If the record was the first probe of a part of the batch, another record of the part runs
        next, as the second probe. If the record was the second probe, the records of the part that
        were no probes move to `given_up`. If the record was no probe, nothing changes.
        """
        waiting = self._parts[-1] if self._parts else None
        if not isinstance(waiting, _AwaitingProbe):
            return
        self._parts.pop()
        if waiting.probe_failed:
            self.given_up = waiting.records
            return
        # Not the next record: those of one customer often stand together.
        middle = len(waiting.records) // 2
        rest = [*waiting.records[:middle], *waiting.records[middle + 1 :]]
        self._parts += [
            _AwaitingProbe(rest, probe_failed=True),
            waiting.records[middle : middle + 1],
        ]

    def _halve(self, part: Sequence[_Record]) -> None:
        half = (len(part) + 1) // 2
        self._parts += [each for each in (part[half:], part[:half]) if each]


def returned(size: int, value: Any) -> PartOutcomes:
    """Returns the outcomes of `size` records for which a handler returned `value`."""
    if not isinstance(value, list | tuple):
        what = type(value).__name__
    elif len(ends := list(value)) != size:
        what = f"{len(ends)} outcomes"
    else:
        return ends
    return [TypeError(f"the batch handler returned {what} for {size} records")] * size


def ends_around(failed: BatchFailed, size: int) -> PartOutcomes:
    """Returns the outcomes of a batch of `size` records whose handler raised `failed`.

    The outcome of the record that `failed` names is the cause that `failed` gives. The records
    before that record have the results in `failed`, or NOT_ATTEMPTED if it has no results. The
    records after that record have NOT_ATTEMPTED. If `failed` names no record of the batch, the
    outcome of every record is an IndexError.
    """
    index, cause, results = failed.index, failed.cause, failed.results
    if not isinstance(index, int) or not 0 <= index < size:
        return [IndexError(f"BatchFailed names record {index!r} in a batch of {size}")] * size
    before = [NOT_ATTEMPTED] * index if results is None else results
    own = cause if isinstance(cause, BaseException) else failed
    return [*before, own, *[NOT_ATTEMPTED] * (size - index - 1)]
