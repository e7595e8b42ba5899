"""The life of a worker, in order."""

from enum import IntEnum


class Phase(IntEnum):
    """What a worker is about; it only ever moves forward."""

    BOOTING = 0  # importing the handler, making clients
    JOINING = 1  # polling, without a first assignment
    RUNNING = 2  # has had an assignment, be it an empty one
    DRAINING = 3  # takes nothing more, finishes what is in hand
    LEAVING = 4  # everything committed; closing
    GONE = 5

    @property
    def taking(self) -> bool:
        """Only now may new records be handed to the pool."""
        return self in (Phase.JOINING, Phase.RUNNING)
