"""The pace at which Python looks for cyclic garbage in a worker."""

import gc
import time

from kworker.instance.scoreboard import Slot
from kworker.instance.scoreboard_fields import Field

MOST = 100_000
"""The number of new objects at which they are looked through, however fast records come."""
_OLDER = (20, 100)


class CollectionPace:
    """Makes collections of young objects as rare as a second's records are many.

    Records in flight are objects that live on, and Python takes them for possible garbage: with its
    own pace, a tenth of the time of a fast worker would go into looking through them. But garbage
    may be large. If each run leaves one cycle, at most a second's cycles are there at once, whether
    handlers are slow or fast. Python's own pace, or that of the handlers' module, is the fastest.
    When a handler changes the pace, its choice stands. Used by the main thread.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._consumed = 0
        self._at = time.monotonic()
        self._set = gc.get_threshold()
        self._least = self._set[0]  # 0: none are looked through

    def turn(self, now: float) -> None:
        """Sets the pace by the rate of records since the last call."""
        consumed = self._slot.words[Field.CONSUMED]
        rate = (consumed - self._consumed) / max(now - self._at, 1e-3)
        self._consumed, self._at = consumed, now
        if self._least and gc.get_threshold() == self._set:
            self._set = (max(self._least, min(MOST, int(rate))), *_OLDER)
            gc.set_threshold(*self._set)
