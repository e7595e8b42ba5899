"""The pace at which Python looks for cyclic garbage in a worker."""

import gc
import time

from kworker.instance.scoreboard import Slot
from kworker.instance.scoreboard_fields import Field

MOST = 100_000
"""The number of new objects at which they are looked through, however fast records come."""
_OLDER = (20, 100)
_FORGET_S = 1.0  # after which records that came do not count any more
_SHORTEST_S = 0.05  # lest the first few records be taken for a high rate


class CollectionPace:
    """Makes Python look for garbage after as many new objects as records come in a second.

    Records in flight are no garbage, but each collection looks through them. With Python's own
    threshold, a fast worker would spend a tenth of its time on that. A very high threshold would
    let garbage fill the memory. With the threshold set here, if each run of a handler leaves one
    cycle of garbage, at most the cycles of one second wait to be freed, whether handlers are slow
    or fast. It is raised as soon as more records come, and lowered once a second. It is never below
    the one found at the start, which is Python's own unless the handlers' module has set another.
    Once a handler has changed the threshold, this class changes it no more. Used by the poll
    thread.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._consumed = 0
        self._at = time.monotonic()
        self._set = gc.get_threshold()
        self._least = self._set[0]  # 0: none are looked through

    def turn(self, now: float) -> None:
        """Sets the collector's threshold by the records taken per second of late."""
        consumed = self._slot.words[Field.CONSUMED]
        passed_s = now - self._at
        rate = (consumed - self._consumed) / max(passed_s, _SHORTEST_S)
        if over := passed_s >= _FORGET_S:
            self._consumed, self._at = consumed, now
        due = over or rate > self._set[0]
        if due and self._least and gc.get_threshold() == self._set:
            self._set = (max(self._least, min(MOST, int(rate))), *_OLDER)
            gc.set_threshold(*self._set)
