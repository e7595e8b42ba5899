"""The public interface of batch handlers: the decorator, and the exception for one record."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kworker.core.duration import parse_duration

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "_kworker_batch"


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The arguments of `@batch`."""

    size: int
    wait_s: float


def batch(*, size: int = 100, wait: str = "200ms") -> Callable[[_Function], _Function]:
    """Makes a handler take a list: up to `size` records that come within `wait` of the first.

    The handler returns a list with an outcome for each record, in the order of the records: a
    result, None, or an exception instance, which is that record's failure. If the handler returns a
    list of another length, or any other value, every record fails.

    The handler may raise `BatchFailed`, which names the record that failed, and gives the outcomes
    of the records before it. Any other exception, also `Retry`, `Snooze` or `Reject`, may be due to
    any of the records. So the batch is halved, and the handler is called with each half, until it
    raises for a single record.

    `Unavailable` says that a dependency is down, which may be so for some of the records only. So
    before the batch is halved, the handler is called with one record alone. If this call raises
    `Unavailable`, too, the handler is called with another record alone. If that call also raises
    `Unavailable`, the other records wait until the dependency is available.

    In all, a record is in at most 1 + ⌈log2 size⌉ calls. If the handler itself returns an exception
    for the record at fault, no further calls are needed.

    With `ordering = "key"` no two records of a batch have the same key, except null keys. Raises
    ValueError for an invalid size or wait, and TypeError for a class: decorate its `__call__`
    instead.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"@batch: size is {size!r}, expected a whole number of at least 1")
    mark = BatchMark(size, parse_duration(wait))

    def decorate(function: _Function) -> _Function:
        if isinstance(function, type):
            raise TypeError(f"@batch belongs on {function.__name__}.__call__, not on the class")
        setattr(function, _MARK, mark)
        return function

    return decorate


def mark_of(function: Any) -> BatchMark | None:
    """Returns the arguments of a function's `@batch`; None for a function without it."""
    mark = getattr(function, _MARK, None)
    return mark if isinstance(mark, BatchMark) else None


class BatchFailed(Exception):
    """Raised by a batch handler: it stopped at the record `index`, from 0, because of `cause`.

    That record follows the retry policy as if it had raised `cause`. `results` has the outcomes of
    the records before it, as the handler would have returned them: a result, None or an exception
    instance for each. Without `results` these records run again, since their outcomes are not
    known. The records after the failed one always run again. Records that run again do so at once,
    and no attempt is counted for them.
    """

    # Defaults for a subclass whose __init__ does not call this one: no record is named.
    index: int = -1
    cause: BaseException | None = None
    results: Sequence[Any] | None = None

    def __init__(
        self, index: int, cause: BaseException, results: Sequence[Any] | None = None
    ) -> None:
        """Raises TypeError for a wrong type, and ValueError for a wrong number of results.

        There must be `index` results, if any are given. In a handler, these errors count like any
        other exception that it raises.
        """
        if not isinstance(cause, BaseException):
            raise TypeError(f"BatchFailed: cause is {cause!r}, expected an exception instance")
        if not isinstance(results, list | tuple | None):
            raise TypeError(f"BatchFailed: results is {type(results).__name__}, expected a list")
        super().__init__(f"record {index} of the batch: {type(cause).__name__}: {cause}")
        self.index = operator.index(index)
        self.cause = cause
        self.results = results
        if results is not None and len(results) != self.index:
            raise ValueError(
                f"BatchFailed at index {index} has {len(results)} results, expected one for each"
                " record before it"
            )


@dataclass(frozen=True, slots=True)
class NotAttempted:
    """The outcome of a record without a result or a failure of its own.

    The record runs again, in this worker or in the next that owns its partition. No attempt is
    counted.
    """


NOT_ATTEMPTED = NotAttempted()
