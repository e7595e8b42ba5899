"""How often Python looks for cyclic garbage in a worker."""

import gc
import time

from kworker.instance.scoreboard import Slot
from kworker.instance.scoreboard_fields import Field

LEAST, MOST = 700, 100_000
"""Objects, by which a collection of the youngest is due; 700 is Python's own choice."""
_OLDER = (20, 100)


class CollectionPace:
    """Makes collections of young objects as rare as a second's records are many.

    Records in flight are objects that live on, and Python takes them for possible garbage: with its
    own choice, a tenth of the time of a fast worker would go into looking through them. But garbage
    may be large. If each run leaves one cycle, at most a second's cycles are there at once, whether
    handlers are slow or fast. Used by the main thread.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._consumed = 0
        self._at = time.monotonic()

    def turn(self, now: float) -> None:
        """Sets the pace by the rate of records since the last call."""
        consumed = self._slot.words[Field.CONSUMED]
        rate = (consumed - self._consumed) / max(now - self._at, 1e-3)
        self._consumed, self._at = consumed, now
        gc.set_threshold(min(MOST, max(LEAST, int(rate))), *_OLDER)
