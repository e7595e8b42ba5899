"""Records with an outcome, on their way from the handlers back to the poll thread."""

import threading
from collections import deque

from kworker.core.record import Record


class CompletionQueue:
    """Filled by any thread, emptied by one.

    Adding does not wake the one who waits, `wake` does: after a run of cheap records once,
    since waking costs more than they do. What nobody told of is found at the next look.
    """

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        # A signal that comes when the time-out is just over makes SimpleQueue.get() wait for
        # ever (CPython 3.11.7); a lock that is held while there is no news does not.
        self._no_news = threading.Lock()
        self._no_news.acquire()
        self.add = self._records.append

    def wake(self) -> None:
        """Something was added."""
        try:
            self._no_news.release()
        except RuntimeError:
            pass  # it was told, and not yet heard

    def take(self, wait_s: float) -> list[Record]:
        """All that is there; waits up to `wait_s` for the first."""
        records = self._records
        if wait_s > 0 and not records:
            self._no_news.acquire(timeout=wait_s)
        else:
            self._no_news.acquire(False)
        take = records.popleft
        return [take() for _ in range(len(records))]
