"""The entries of the scoreboard in which handler threads note the records that they run."""

from dataclasses import dataclass

from kworker.core.record import PLACE_BITS

HAND_WORDS = 8  # three are used; a cache line, so that threads do not share one
_EMPTY = -1


@dataclass(frozen=True, slots=True)
class Held:
    """The position of a record that a handler is running, and the time when that run began."""

    topic: str
    partition: int
    offset: int
    since_ns: int
    thread: int = 0  # the native id of the handler's thread; 0 where many share one


class Hand:
    """The record that one handler thread is running, in three words of its worker's slot.

    The words are the record, the start of its run, and the thread's id. Only this thread writes,
    and the supervisor reads. The thread stores the start before the record. A reader loads the
    start after the record, so that no record looks older than it is. The thread pool stores these
    two words without calling `take`, because a call costs more than the two stores. It stores the
    start at most every 0.1 ms, so there a record may look older by that.
    """

    def __init__(self, words: memoryview, base: int) -> None:
        self.words = words
        self.place_at = base
        self.since_at = base + 1
        self._thread_at = base + 2

    @property
    def thread(self) -> int:
        """The native id of the handler thread; 0 until it is set."""
        return self.words[self._thread_at]

    def set_thread(self, thread: int) -> None:
        """Stores the native id of the only thread that writes here."""
        self.words[self._thread_at] = thread

    @property
    def used(self) -> bool:
        """True if the thread has run any record since this worker began."""
        return self.words[self.since_at] != 0

    def reset(self) -> None:
        """Clears all words of this handler thread, before the next worker uses the slot."""
        self.clear()
        self.words[self.since_at] = self.words[self._thread_at] = 0

    def detach(self, words: memoryview) -> None:
        """Replaces the shared memory by `words`, a private copy of it."""
        self.words = words

    def take(self, place: int, now_ns: int) -> None:
        """Stores the record that the thread begins; `place` encodes its partition and offset."""
        self.words[self.since_at] = now_ns
        self.words[self.place_at] = place

    def clear(self) -> None:
        """Stores that the thread runs no record."""
        self.words[self.place_at] = _EMPTY

    def read(self) -> tuple[int, int, int] | None:
        """Returns (partition's index in `Text.known`, offset, since_ns); None if no record runs."""
        place = self.words[self.place_at]
        if place == _EMPTY:
            return None
        return place >> PLACE_BITS, place & ((1 << PLACE_BITS) - 1), self.words[self.since_at]
