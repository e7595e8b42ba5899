"""The pace at which Python looks for cyclic garbage in a worker."""

import gc
import time

from kworker.instance.scoreboard import Slot
from kworker.instance.scoreboard_fields import Field

MOST = 100_000
"""The number of new objects at which they are looked through, however fast records come."""
_OLDER = (20, 100)


class CollectionPace:
    """Sets how many new objects start a collection: as many as records were taken in a second.

    Records in flight stay alive, but each collection looks through them. With Python's own
    threshold, a fast worker would spend a tenth of its time on that. A very high threshold would
    let garbage fill the memory. With the threshold set here, if each run leaves one cycle, at most
    the cycles of one second wait to be freed, whether handlers are slow or fast. The threshold is
    never below Python's own, or the one that the handlers' module has set. If a handler changes it
    later, that choice stands. Used by the main thread.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._consumed = 0
        self._at = time.monotonic()
        self._set = gc.get_threshold()
        self._least = self._set[0]  # 0: none are looked through

    def turn(self, now: float) -> None:
        """Sets the collector's threshold by the records taken per second since the last call."""
        consumed = self._slot.words[Field.CONSUMED]
        rate = (consumed - self._consumed) / max(now - self._at, 1e-3)
        self._consumed, self._at = consumed, now
        if self._least and gc.get_threshold() == self._set:
            self._set = (max(self._least, min(MOST, int(rate))), *_OLDER)
            gc.set_threshold(*self._set)
