"""The description of a failed run, to decide by, to log, and to write in headers."""

import math
import traceback
from dataclasses import dataclass, replace
from typing import Any, Literal

from kworker.core.message import Undecodable
from kworker.core.outcome import Reject, Retry, Snooze, Unavailable, Unpublishable

FailureKind = Literal[
    "error",
    "retry",
    "snooze",
    "unavailable",
    "reject",
    "undecodable",
    "unreadable",
    "unpublishable",
    "crashed",
    "timeout",
    "expired",
    "operator",
]
AFTER_MAX_S = 100 * 365 * 86_400.0
"""The longest wait that a handler may request; beyond, the due time is no calendar date."""
_TEXT_MAX = 2_000  # characters of a message, which may contain a whole document
_NAME_MAX = 200  # characters of what is unavailable, or of a type's name
_STACK_BYTES_MAX = 8 << 10


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed run, described by plain values that can be sent to another process.

    `exception` is the dotted name of the exception's type. `lineage` has the dotted and the bare
    name of this type and of each of its bases. `after` is the wait in seconds that the handler
    requested. `name` is the dependency that is unavailable. `where` is the line of code that
    raised.
    """

    kind: FailureKind
    exception: str = ""
    lineage: tuple[str, ...] = ()
    message: str = ""
    stack: str = ""
    after: float | None = None
    name: str = ""
    where: str = ""

    def __str__(self) -> str:
        """Returns the failure as one line for the log."""
        short = self.exception.rpartition(".")[2]
        return f"{short}: {self.message}" if short and self.message else short or self.message

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describes an exception without its stack.

        Formatting a stack takes longer than the whole description. Most failures lead to a retry,
        for which no stack is needed.
        """
        if isinstance(error, Described):
            return error.failure
        return cls(
            kind=_kind(error),
            exception=_dotted(type(error)),
            lineage=_lineage(type(error)),
            message=text_of(error),
            after=_seconds(error.after_s) if isinstance(error, Retry | Snooze) else None,
            name=_text_of(error.name, _NAME_MAX) if isinstance(error, Unavailable) else "",
            where=_where(error),
        )

    @classmethod
    def unreadable(cls, error: BaseException, what: str) -> "Failure":
        """Describes an exception raised by reading part of a record; `what` begins the message.

        The Kafka library wraps a decoding error in a SystemError, whose cause says more.
        """
        cause = error.__cause__ if isinstance(error, SystemError) else None
        shown = error if cause is None else cause
        text = f"{what} ({text_of(shown)})"
        return cls("unreadable", exception=_dotted(type(shown)), message=text, where=_where(error))

    @classmethod
    def in_full(cls, error: BaseException) -> "Failure":
        """Describes an exception with its stack."""
        return error.failure if isinstance(error, Described) else cls.of(error).with_stack(error)

    def with_stack(self, error: BaseException) -> "Failure":
        """Returns the failure with the stack of `error` added."""
        return self if isinstance(error, Described) else replace(self, stack=_stack(error))


class Described(Exception):
    """An exception that carries a `Failure`.

    The failure comes from another process, or kworker itself made it, outside of any handler.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    def __reduce__(self) -> tuple[type["Described"], tuple[Failure]]:
        return Described, (self.failure,)


_KINDS: tuple[tuple[type[BaseException], FailureKind], ...] = (
    (Retry, "retry"),
    (Snooze, "snooze"),
    (Unavailable, "unavailable"),
    (Reject, "reject"),
    (Undecodable, "undecodable"),
    (Unpublishable, "unpublishable"),
)


def _kind(error: BaseException) -> FailureKind:
    return next((kind for of, kind in _KINDS if isinstance(error, of)), "error")


def _dotted(of: type) -> str:
    module, name = of.__module__, of.__qualname__
    return _text_of(name if module == "builtins" else f"{module}.{name}", _NAME_MAX)


def _lineage(of: type) -> tuple[str, ...]:
    names = [name for base in of.__mro__[:-1] for name in (_dotted(base), base.__qualname__)]
    return tuple(dict.fromkeys(names))


def text_of(error: BaseException) -> str:
    """Returns an exception's text; never raises, whatever its `__str__` does."""
    return _text_of(error, _TEXT_MAX)


def _text_of(value: Any, most: int) -> str:
    try:
        text = str(value)
        # Characters that UTF-8 lacks must not prevent a dead letter.
        return str.encode(text[:most], errors="backslashreplace").decode()
    except BaseException as raised:  # noqa: BLE001 - the user's own __str__, which may even exit
        return f"(its text cannot be made: {type(raised).__name__})"


def _seconds(after: Any) -> float | None:
    """Returns a handler's `after` in seconds; None if it is no number.

    If the result is None, the wait of the retry policy applies.
    """
    if not isinstance(after, int | float) or math.isnan(after):
        return None
    return float(min(max(after, 0), AFTER_MAX_S))


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return _text_of(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", _TEXT_MAX)


def _stack(error: BaseException) -> str:
    """Returns the last 8 KiB of the traceback: the innermost frames and the error."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as raised:  # noqa: BLE001 - the user's own __str__ again
        text = f"(no traceback: {type(raised).__name__})"
    data = text.encode(errors="backslashreplace")[-_STACK_BYTES_MAX:]
    return data.decode(errors="ignore")
