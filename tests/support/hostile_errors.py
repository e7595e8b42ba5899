"""Exceptions that a handler may raise, of which kworker has to make something all the same."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from kworker.core.outcome import Reject, Retry, Snooze, Unavailable


class Bare(Retry):
    """As a library's author may write it, who does not know of `super().__init__()`."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds


class BareSnooze(Snooze):
    def __init__(self) -> None: ...


class BareReject(Reject):
    def __init__(self, code: int) -> None:
        self.code = code


class BareUnavailable(Unavailable):
    def __init__(self) -> None: ...


class Loud(Exception):
    def __str__(self) -> str:
        return "x" * 3_000_000


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Odd(Exception):
    """Nothing of it can be compared, hashed or shown."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        raise ZeroDivisionError

    @property
    def __class__(self) -> Any:
        raise ZeroDivisionError


class Elsewhen(Retry):
    """With an `after` of which no time can be made."""

    def __init__(self, after: Any) -> None:
        self.after_s = after


class Nameless(Unavailable):
    def __init__(self, name: Any) -> None:
        self.name = name


def in_a_circle() -> Exception:
    one, other = ValueError("one"), ValueError("\udcff")
    one.__cause__, other.__cause__ = other, one
    return one


AFTERS = [math.nan, math.inf, -math.inf, -1, 10**400, "30s", b"", [], True]
HOSTILE: dict[str, Callable[[], BaseException]] = {
    "loud": Loud,
    "mute": Mute,
    "odd": Odd,
    "a circle": in_a_circle,
    "half of a pair": lambda: ValueError("half of a pair: \ud800"),
    "no module": type("Stray", (Exception,), {"__module__": None}),
    "a bare retry": partial(Bare, 3),
    "a bare snooze": BareSnooze,
    "a bare reject": partial(BareReject, 4),
    **{f"after {after!r:.20}": partial(Elsewhen, after) for after in AFTERS},
}
