"""What a handler says is unavailable: its route takes nothing, and one record probes."""

from collections import deque
from dataclasses import dataclass
from math import inf

from kworker.core.record import Partition, Record
from kworker.worker.retries.policy import STANDSTILL_S

_NAMES_MAX = 1_000  # remembered; a name may be a customer's
_FORGET_S = 300.0  # a name that was not raised for so long is as good as new
_APART = 3  # times that others succeeded between two raises: then it is not everybody's matter,
_APART_S = 1.0  # and stops nobody so shortly after a success


@dataclass(frozen=True, slots=True)
class _Raised:
    """When a name last was, and how many records had succeeded by then."""

    at: float
    successes: int
    apart: int = 0  # times that it was raised again although others had succeeded


class CircuitBreaker:
    """One handler and what it says it cannot reach. Owned by the poll thread.

    A name that is raised stops the route. What is in hand ends as it may; then one record
    every five seconds probes, each time another if there is one, and its success lets all
    go on. A name that is raised although records have succeeded since it last was is the
    matter of those records alone: they are snoozed, the route does not stop. Such records
    come together, too, with no success between them; so when that is known of a name, it
    takes a while without any success to stop the route.
    """

    def __init__(self) -> None:
        self.unavailable: list[str] = []
        self._raisers: deque[Record] = deque()
        self._aside: deque[Record] = deque()  # kept from running
        self._raised: dict[str, _Raised] = {}  # by name
        self._successes = 0
        self._well = (0, -inf)  # successes as a raise found them, and when they were news to it
        self._probe_at = 0.0
        self._probe: Record | None = None
        self._encouraged = False  # something in hand succeeded after all

    def raised(self, record: Record, name: str, now: float) -> bool:
        """True: the route stands, and the record waits. False: it is snoozed."""
        if self._matter_of_few(name, now) and not self.unavailable:
            return False
        if not self.unavailable:
            self._probe_at = now + STANDSTILL_S
            self._encouraged = False
        if name not in self.unavailable:
            self.unavailable.append(name)
        self._probe = None
        self._raisers.append(record)
        return True

    def _matter_of_few(self, name: str, now: float) -> bool:
        """Whether others succeed while this name is raised."""
        last = self._raised.pop(name, None)
        if last is None or now - last.at > _FORGET_S:
            last = _Raised(now, self._successes)
        if self._successes > self._well[0]:
            self._well = (self._successes, now)
        again = self._successes > last.successes
        self._raised[name] = _Raised(now, self._successes, last.apart + again)
        if len(self._raised) > _NAMES_MAX:
            del self._raised[next(iter(self._raised))]
        return again or (last.apart >= _APART and now - self._well[1] < _APART_S)

    def succeeded(self, records: int) -> bool:
        """True: the route, which stood, goes on."""
        self._successes += records
        if not self.unavailable:
            return False
        if self._probe is None:
            self._encouraged = True
            return False
        self.unavailable.clear()
        self._probe = None
        return True

    def may_run(self, record: Record) -> bool:
        """Returns True if the circuit is closed, or the record is the probe."""
        return not self.unavailable or record is self._probe

    def set_aside(self, record: Record) -> None:
        """Keeps a record that may not run until it probes, or `let_go` returns it."""
        self._aside.append(record)

    def probe(self, now: float, *, in_hand: int) -> Record | None:
        """The record that shall probe now; `in_hand` are with the handlers."""
        soon = self._encouraged and not in_hand
        candidates = self._aside or self._raisers
        if not self.unavailable or not candidates or (now < self._probe_at and not soon):
            return None
        self._probe_at = now + STANDSTILL_S
        self._encouraged = False
        self._probe = candidates.popleft()
        return self._probe

    def let_go(self) -> list[Record]:
        """All that waited; last those that raised it, for it may have been their matter alone."""
        waited = [*self._aside, *self._raisers]
        self._raisers.clear()
        self._aside.clear()
        return waited

    def forget(self, partition: Partition) -> None:
        """It is given up, with what waited of it."""
        for waiting in (self._raisers, self._aside):
            kept = [record for record in waiting if record.partition is not partition]
            waiting.clear()
            waiting.extend(kept)
