"""The circuit breaker of a handler: opened by `Unavailable`, closed by a probe that succeeds."""

from collections import deque
from dataclasses import dataclass
from math import inf

from kworker.core.record import Partition, Record
from kworker.worker.retries.policy import PROBE_EVERY_S

_NAMES_MAX = 1_000  # remembered; a name may be a customer's
_FORGET_S = 300.0  # a name that was not raised for so long counts as new
# A name between whose raises others succeeded so often is the matter of a few records,
_APART = 3
_APART_S = 1.0  # and does not open the circuit so soon after a success.


@dataclass(frozen=True, slots=True)
class _Raised:
    """A dependency that `Unavailable` has named.

    `at` is the last time that it was named. `successes` is the number of records that had succeeded
    by then.
    """

    at: float
    successes: int
    apart: int = 0  # times that it was raised again after others had succeeded


class CircuitBreaker:
    """Stops one handler while a dependency that it needs is unavailable.

    Owned by the poll thread. A handler's `Unavailable` names the dependency, and opens the circuit.
    Records that already run may end, but no others begin while the circuit is open. Only one record
    every five seconds runs as a probe. Waiting records take turns as probes. A probe that succeeds
    closes the circuit.

    But if other records have succeeded since a dependency was last named, this dependency seems to
    be unavailable to a few records only. Then the circuit stays closed, and the record that named
    the dependency runs again some seconds later. After three such cases, the dependency opens the
    circuit only if no record succeeded in the last second. This is because two of the few records
    may by chance fail one right after the other, with no success between them.
    """

    def __init__(self) -> None:
        self.unavailable: list[str] = []
        self._raisers: deque[Record] = deque()  # these have raised a name
        self._aside: deque[Record] = deque()  # these have not run
        self._raised: dict[str, _Raised] = {}  # by name
        self._successes = 0
        self._last_success = (0, -inf)  # the number at the last raise, and when it last grew
        self._probe_at = 0.0
        self._probe: Record | None = None
        self._probe_soon = False  # a record in hand has succeeded since

    def raised(self, record: Record, name: str, now: float) -> bool:
        """Notes that a record raised `Unavailable`. Returns True if the circuit is open now.

        If True, the record waits here until `probe` or `let_go` returns it. If False, the caller
        runs the record again some seconds later.
        """
        if self._count_raise(name, now) and not self.unavailable:
            return False
        if not self.unavailable:
            self._probe_at = now + PROBE_EVERY_S
            self._probe_soon = False
        if name not in self.unavailable:
            self.unavailable.append(name)
        self._probe = None
        self._raisers.append(record)
        return True

    def _count_raise(self, name: str, now: float) -> bool:
        """Counts an `Unavailable` that names the dependency `name`.

        Returns True if that dependency seems to be unavailable to a few records only.
        """
        last = self._raised.pop(name, None)
        if last is None or now - last.at > _FORGET_S:
            last = _Raised(now, self._successes)
        if self._successes > self._last_success[0]:
            self._last_success = (self._successes, now)
        again = self._successes > last.successes
        self._raised[name] = _Raised(now, self._successes, last.apart + again)
        if len(self._raised) > _NAMES_MAX:
            del self._raised[next(iter(self._raised))]
        return again or (last.apart >= _APART and now - self._last_success[1] < _APART_S)

    def succeeded(self, records: int) -> bool:
        """Counts successes; returns True if they close the circuit."""
        self._successes += records
        if not self.unavailable:
            return False
        if self._probe is None:
            self._probe_soon = True
            return False
        self.unavailable.clear()
        self._probe = None
        return True

    def may_run(self, record: Record) -> bool:
        """Returns True if the circuit is closed, or the record is the probe."""
        return not self.unavailable or record is self._probe

    def set_aside(self, record: Record) -> None:
        """Keeps a record that may not run now, until `probe` or `let_go` returns it."""
        self._aside.append(record)

    def probe(self, now: float, *, in_hand: int) -> Record | None:
        """Returns the record to run as a probe now, or None. `in_hand` records are running."""
        soon = self._probe_soon and not in_hand
        candidates = self._aside or self._raisers
        if not self.unavailable or not candidates or (now < self._probe_at and not soon):
            return None
        self._probe_at = now + PROBE_EVERY_S
        self._probe_soon = False
        self._probe = candidates.popleft()
        return self._probe

    def let_go(self) -> list[Record]:
        """Removes and returns all waiting records.

        Those that raised `Unavailable` come last.
        """
        waited = [*self._aside, *self._raisers]
        self._raisers.clear()
        self._aside.clear()
        return waited

    def forget(self, partition: Partition) -> None:
        """Drops the waiting records of a revoked partition."""
        for waiting in (self._raisers, self._aside):
            kept = [record for record in waiting if record.partition is not partition]
            waiting.clear()
            waiting.extend(kept)
