"""The phases of a worker, in order."""

from enum import IntEnum


class Phase(IntEnum):
    """The phase of a worker, which only moves forward."""

    BOOTING = 0  # importing the handler, making clients
    JOINING = 1  # polling, without a first assignment
    RUNNING = 2  # has had an assignment, even an empty one
    DRAINING = 3  # takes nothing more, finishes what is in hand
    LEAVING = 4  # everything committed; closing
    GONE = 5

    @property
    def taking(self) -> bool:
        """True if the worker may start handlers for new records in this phase."""
        return self in (Phase.JOINING, Phase.RUNNING)
