"""What is told of a run that raised: enough to decide by, to log, and to write in headers."""

import traceback
from dataclasses import dataclass, replace
from typing import Literal

from kworker.core.message import Undecodable
from kworker.core.outcome import Reject, Retry, Snooze, Unavailable, Unpublishable

Kind = Literal[
    "error",
    "retry",
    "snooze",
    "unavailable",
    "reject",
    "undecodable",
    "unpublishable",
    "crashed",
    "timeout",
    "expired",
    "operator",
]
_TEXT_MAX = 2_000  # characters of a message, which may hold a whole document
_STACK_BYTES_MAX = 8 << 10


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed run, as plain values: it crosses processes.

    `exception` is the dotted name of its type, `lineage` that and the bare name of it and
    of each of its bases, `after` seconds, `name` what is unavailable, `where` the line that raised.
    """

    kind: Kind
    exception: str = ""
    lineage: tuple[str, ...] = ()
    message: str = ""
    stack: str = ""
    after: float | None = None
    name: str = ""
    where: str = ""

    def __str__(self) -> str:
        """A line for the log."""
        short = self.exception.rpartition(".")[2]
        return f"{short}: {self.message}" if short and self.message else short or self.message

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describes what a handler raised, or what kworker found; without its stack.

        To write that down costs more than all the rest, and most failures are not final.
        """
        if isinstance(error, Described):
            return error.failure
        return cls(
            kind=_kind(error),
            exception=_dotted(type(error)),
            lineage=_lineage(type(error)),
            message=_text(error),
            after=error.after_s if isinstance(error, Retry | Snooze) else None,
            name=error.name if isinstance(error, Unavailable) else "",
            where=_where(error),
        )

    @classmethod
    def in_full(cls, error: BaseException) -> "Failure":
        """The same with its stack."""
        return error.failure if isinstance(error, Described) else cls.of(error).with_stack(error)

    def with_stack(self, error: BaseException) -> "Failure":
        """The same, told of this error."""
        return self if isinstance(error, Described) else replace(self, stack=_stack(error))


class Described(Exception):
    """Stands for a failure that happened elsewhere, or that no handler raised."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    def __reduce__(self) -> tuple[type["Described"], tuple[Failure]]:
        return Described, (self.failure,)


_KINDS: tuple[tuple[type[BaseException], Kind], ...] = (
    (Retry, "retry"),
    (Snooze, "snooze"),
    (Unavailable, "unavailable"),
    (Reject, "reject"),
    (Undecodable, "undecodable"),
    (Unpublishable, "unpublishable"),
)


def _kind(error: BaseException) -> Kind:
    return next((kind for of, kind in _KINDS if isinstance(error, of)), "error")


def _dotted(of: type) -> str:
    return of.__qualname__ if of.__module__ == "builtins" else f"{of.__module__}.{of.__qualname__}"


def _lineage(of: type) -> tuple[str, ...]:
    names = [name for base in of.__mro__[:-1] for name in (_dotted(base), base.__qualname__)]
    return tuple(dict.fromkeys(names))


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as raised:  # noqa: BLE001 - the user's own __str__
        text = f"(its text cannot be made: {type(raised).__name__})"
    # What UTF-8 cannot say must not stop a dead letter from being written.
    return text[:_TEXT_MAX].encode(errors="backslashreplace").decode()


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _stack(error: BaseException) -> str:
    """The last 8 KiB of the traceback: the innermost frames and the error."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as raised:  # noqa: BLE001 - the user's own __str__ again
        text = f"(no traceback: {type(raised).__name__})"
    data = text.encode(errors="backslashreplace")[-_STACK_BYTES_MAX:]
    return data.decode(errors="ignore")
