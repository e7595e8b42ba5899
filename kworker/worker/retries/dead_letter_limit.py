"""The dead-letter breaker: if too many records fail for good, something else is at fault.

Then further records that fail for good are held in memory, and run again now and then.
"""

import re
from collections import deque
from dataclasses import dataclass

_SETTING = re.compile(r"(\d+)% of (\d+)")


@dataclass(frozen=True, slots=True)
class DeadLetterLimitPolicy:
    """The settings of the limit on dead letters.

    If more than `share` of the last `window` final outcomes are dead letters, the limit is
    exceeded. Then further dead letters are held back. One held record of each partition runs again
    every `try_every_s`. After `successes` records in a row have succeeded, dead letters pass again.
    """

    share: float
    window: int
    try_every_s: float = 5.0
    successes: int = 10  # in a row, to close it

    @classmethod
    def of(cls, setting: str) -> "DeadLetterLimitPolicy | None":
        """Parses a setting like `"50% of 200"`. Returns None for an empty one, which means off."""
        found = _SETTING.fullmatch(setting)
        return cls(int(found[1]) / 100, int(found[2])) if found else None


class DeadLetterLimit:
    """Holds dead letters back while one worker makes too many of them.

    The limit works like a circuit breaker. It opens when dead letters are too large a share of
    the latest final outcomes. While it is open, records that fail for good are held and tried
    again. Owned by the poll thread.
    """

    def __init__(self, policy: DeadLetterLimitPolicy) -> None:
        self._policy = policy
        self._runs: deque[tuple[bool, int]] = deque()  # (dead, number in a row), oldest first
        self._total = self._dead = 0
        self._successes = 0  # in a row, while open
        self._try_at = 0.0
        self.open = False

    def succeeded(self, records: int) -> None:
        """Counts records that succeeded. Enough of them in a row let dead letters pass again."""
        if self.open:
            self._successes += records
            if self._successes >= self._policy.successes:
                self.reset()
            return
        self._add(False, records)

    def retract_success(self) -> None:
        """Takes the last success out of the count, because Kafka refused its outputs for good."""
        self._successes = max(0, self._successes - 1)
        for i in reversed(range(len(self._runs))):
            dead, count = self._runs[i]
            if not dead:
                self._runs[i] = (False, count - 1)
                self._count()
                return

    def died(self, now: float) -> bool:
        """Counts a dead letter and returns True; returns False if it is to be held instead."""
        if self.open:
            self._successes = 0
            return False
        self._add(True, 1)
        if self._total < self._policy.window or self._dead <= self._policy.share * self._total:
            return True
        self.open = True
        self._successes = 0
        self._try_at = now + self._policy.try_every_s
        return True

    def try_due(self, now: float) -> bool:
        """Returns True if dead letters are held back, and it is time to try the held records."""
        return self.open and now >= self._try_at

    def tried(self, now: float) -> None:
        """Notes that held records are tried now, and sets the time of the next try."""
        self._try_at = now + self._policy.try_every_s

    def reset(self) -> None:
        """Lets records become dead letters again, and forgets all outcomes counted so far."""
        self.open = False
        self._runs.clear()
        self._total = self._dead = 0

    def _add(self, dead: bool, count: int) -> None:
        if self._runs and self._runs[-1][0] == dead:
            count += self._runs.pop()[1]
        self._runs.append((dead, count))
        self._count()

    def _count(self) -> None:
        """Drops the oldest outcomes beyond the window, and counts the remaining dead letters."""
        window, runs = self._policy.window, self._runs
        self._total = sum(count for _, count in runs)
        while self._total > window:
            dead, count = runs.popleft()
            over = min(count, self._total - window)
            self._total -= over
            if count > over:
                runs.appendleft((dead, count - over))
        self._dead = sum(count for dead, count in runs if dead)
