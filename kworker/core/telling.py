"""A record that goes to its handler once more, to be told of."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TellDead:
    """A record's outcome on its way to the pool: the handler's `dead` is told of `error`.

    The record comes back with the outcome `then`, whatever `dead` does.
    """

    error: BaseException
    then: Any
