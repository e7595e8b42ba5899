"""What a handler says is unavailable: its route takes nothing, and one record probes."""

from collections import deque

from kworker.core.record import Partition, Record
from kworker.core.retry import STANDSTILL_S

_NAMES_MAX = 1_000  # remembered; a name may be a customer's


class Route:
    """One handler and what it says it cannot reach. Owned by the poll thread.

    A name that is raised stops the route. What is in hand ends as it may; then one record
    every five seconds probes, each time another if there is one, and its success lets all
    go on. A name that is raised although records have succeeded since it last was is the
    matter of those records alone: they wait, the route does not stop.
    """

    def __init__(self) -> None:
        self.standing: list[str] = []
        self._raisers: deque[Record] = deque()
        self._aside: deque[Record] = deque()  # kept from running
        self._raised: dict[str, int] = {}  # by name: how many had succeeded when it last was
        self._successes = 0
        self._probe_at = 0.0
        self._probe: Record | None = None
        self._encouraged = False  # something in hand succeeded after all

    def raised(self, record: Record, name: str, now: float) -> bool:
        """True: the route stands, and the record waits. False: it is snoozed."""
        before = self._raised.pop(name, self._successes)
        self._raised[name] = self._successes
        if len(self._raised) > _NAMES_MAX:
            del self._raised[next(iter(self._raised))]
        if self._successes > before and not self.standing:
            return False
        if not self.standing:
            self._probe_at = now + STANDSTILL_S
            self._encouraged = False
        if name not in self.standing:
            self.standing.append(name)
        self._probe = None
        self._raisers.append(record)
        return True

    def succeeded(self, records: int) -> bool:
        """True: the route, which stood, goes on."""
        self._successes += records
        if not self.standing:
            return False
        if self._probe is None:
            self._encouraged = True
            return False
        self.standing.clear()
        self._probe = None
        return True

    def passes(self, record: Record) -> bool:
        """Whether a record may run; if not, it is kept aside."""
        if not self.standing or record is self._probe:
            return True
        self._aside.append(record)
        return False

    def probe(self, now: float, *, in_hand: int) -> Record | None:
        """The record that shall probe now; `in_hand` are with the handlers."""
        soon = self._encouraged and not in_hand
        candidates = self._aside or self._raisers
        if not self.standing or not candidates or (now < self._probe_at and not soon):
            return None
        self._probe_at = now + STANDSTILL_S
        self._encouraged = False
        self._probe = candidates.popleft()
        return self._probe

    def let_go(self) -> list[Record]:
        """All that waited, in the order in which they would have run."""
        waited = [*self._raisers, *self._aside]
        self._raisers.clear()
        self._aside.clear()
        return waited

    def forget(self, partition: Partition) -> None:
        """It is given up, with what waited of it."""
        for waiting in (self._raisers, self._aside):
            kept = [record for record in waiting if record.partition is not partition]
            waiting.clear()
            waiting.extend(kept)
