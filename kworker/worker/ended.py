"""Records with an outcome, on their way from the handlers back to the poll thread."""

from collections import deque
from queue import Empty, SimpleQueue

from kworker.core.record import Record


class Ended:
    """Filled by any thread, emptied by one.

    Adding does not wake the one who waits, `tell` does: after a run of cheap records once,
    since waking costs more than they do. What nobody told of is found at the next look.
    """

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._news: SimpleQueue[None] = SimpleQueue()
        self.add = self._records.append

    def tell(self) -> None:
        """Something was added."""
        self._news.put(None)

    def take(self, wait_s: float) -> list[Record]:
        """All that is there; waits up to `wait_s` for the first."""
        records, news = self._records, self._news
        try:
            if wait_s > 0 and not records:
                news.get(timeout=wait_s)
            for _ in range(news.qsize()):
                news.get_nowait()
        except Empty:
            pass
        take = records.popleft
        return [take() for _ in range(len(records))]
