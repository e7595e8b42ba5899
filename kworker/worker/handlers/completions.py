"""The queue of records with an outcome, from handlers back to the poll thread."""

import threading
from typing import NamedTuple

from kworker.core.durations import Durations, total
from kworker.core.record import Record


class HandlerTimes(NamedTuple):
    """The durations that one thread measures: of handlers' runs, and of the waits before them."""

    runs: Durations
    waits: Durations

    def tally(self) -> None:
        """Counts the durations that were to be counted later. Called by the poll thread only."""
        self.runs.tally()
        self.waits.tally()


class CompletionQueue:
    """A queue of finished records. Any thread adds records, one thread takes them.

    `add` does not wake the thread that waits in `take`, because waking costs more than adding.
    `wake` wakes that thread, and is called once after several records. Records that are added
    without `wake` are returned by the next call of `take`. Each thread that measures handlers gets
    an object from `new_times`. In this object, the thread counts how long records waited for their
    handlers, and how long the handlers ran.
    """

    def __init__(self) -> None:
        self._records: list[Record] = []
        # A signal that arrives just as the time-out ends makes SimpleQueue.get() block for ever
        # (CPython 3.11.7); acquiring a lock that is held while the queue is empty does not.
        self._empty = threading.Lock()
        self._empty.acquire()
        self.needs_wake = self._empty.locked  # to ask costs a third of `wake`
        self._taken = 0
        self.add = self._records.append
        self._times: list[HandlerTimes] = []

    def new_times(self) -> HandlerTimes:
        """Returns a new object, in which one thread counts the durations that it measures."""
        times = HandlerTimes(Durations(), Durations())  # several threads may be here
        self._times.append(times)
        return times

    def run_times(self) -> list[int]:
        """Returns a histogram of all threads' runs: counts, then the sum of durations (in µs).

        Called by the poll thread.
        """
        return total([times.runs for times in self._counted()])

    def number_of_runs(self) -> int:
        """Returns how many runs all threads have measured so far."""
        return sum([sum(times.runs.counts) for times in list(self._times)])

    def wait_times(self) -> list[int]:
        """Returns a histogram of the waits before runs: counts, then the sum of waits (in µs).

        Called by the poll thread.
        """
        return total([times.waits for times in self._counted()])

    def _counted(self) -> list[HandlerTimes]:
        for times in (all_times := list(self._times)):
            times.tally()
        return all_times

    @property
    def added(self) -> int:
        """The number of records that were added, ever. Read by the thread that takes them."""
        return self._taken + len(self._records)

    def wake(self) -> None:
        """Wakes the thread that waits in `take`."""
        if self._empty.locked():  # else it is woken already
            try:
                self._empty.release()
            except RuntimeError:
                pass  # by another thread, just now

    def take(self, wait_s: float) -> list[Record]:
        """Returns all records; waits up to `wait_s` for the first."""
        records = self._records
        if wait_s > 0 and not records:
            self._empty.acquire(timeout=wait_s)
        else:
            self._empty.acquire(False)
        taken = records[:]  # atomic, as is what follows
        del records[: len(taken)]
        self._taken += len(taken)
        return taken
