"""When too much dies, the fault is not the records': dead letters are held back."""

import re
from collections import deque
from dataclasses import dataclass

_SETTING = re.compile(r"(\d+)% of (\d+)")


@dataclass(frozen=True, slots=True)
class DeadLetterLimitPolicy:
    """Open when more than `share` of the last `window` final outcomes are dead letters."""

    share: float
    window: int
    try_every_s: float = 5.0
    successes: int = 10  # in a row, to close it

    @classmethod
    def of(cls, setting: str) -> "DeadLetterLimitPolicy | None":
        """`"50% of 200"`; None for "", which is off."""
        found = _SETTING.fullmatch(setting)
        return cls(int(found[1]) / 100, int(found[2])) if found else None


class DeadLetterLimit:
    """The last final outcomes of one worker. Owned by the poll thread."""

    def __init__(self, policy: DeadLetterLimitPolicy) -> None:
        self._policy = policy
        self._runs: deque[tuple[bool, int]] = deque()  # (dead, how many in a row), oldest first
        self._total = self._dead = 0
        self._successes = 0  # in a row, while open
        self._try_at = 0.0
        self.open = False

    def succeeded(self, records: int) -> None:
        """So many ended well."""
        if self.open:
            self._successes += records
            if self._successes >= self._policy.successes:
                self.reset()
            return
        self._add(False, records)

    def took_back(self) -> None:
        """One that ended well did not: what it led to was refused."""
        self._successes = max(0, self._successes - 1)
        for i in reversed(range(len(self._runs))):
            dead, count = self._runs[i]
            if not dead:
                self._runs[i] = (False, count - 1)
                self._count()
                return

    def died(self, now: float) -> bool:
        """One would be a dead letter: False, it shall be held; True, it is counted as one."""
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

    def try_now(self, now: float) -> bool:
        """While open, now and then: whether held records shall be tried."""
        if not self.open or now < self._try_at:
            return False
        self._try_at = now + self._policy.try_every_s
        return True

    def reset(self) -> None:
        """Closes it; what was before is forgotten."""
        self.open = False
        self._runs.clear()
        self._total = self._dead = 0

    def _add(self, dead: bool, count: int) -> None:
        if self._runs and self._runs[-1][0] == dead:
            count += self._runs.pop()[1]
        self._runs.append((dead, count))
        self._count()

    def _count(self) -> None:
        """Keeps the window; the last run alone may be longer than it, and is cut."""
        window, runs = self._policy.window, self._runs
        self._total = sum(count for _, count in runs)
        while self._total > window:
            dead, count = runs.popleft()
            over = min(count, self._total - window)
            self._total -= over
            if count > over:
                runs.appendleft((dead, count - over))
        self._dead = sum(count for dead, count in runs if dead)
