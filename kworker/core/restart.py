"""The restart of dead processes: back-off and the crash-loop limit."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The limits of restarts."""

    window_s: float = 10.0  # deaths closer together than this are a series
    deaths_at_once: int = 2  # of a series, the first that restart without a delay
    first_delay_s: float = 1.0
    longest_delay_s: float = 30.0
    failed_starts_max: int = 5  # deaths in a row before the first poll, other than by SIGKILL


@dataclass(frozen=True, slots=True)
class StartAgain:
    """The process starts again after `delay_s`; `failed_starts` counts towards the limit."""

    delay_s: float
    failed_starts: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The process does not start again: too many starts have failed in a row."""

    failed_starts: int


class Backoff:
    """A delay that doubles with each failure, and starts anew after a life without one."""

    def __init__(self, first_s: float, longest_s: float, calm_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._calm_s = calm_s
        self._delay_s = 0.0

    @property
    def active(self) -> bool:
        """True if the last failure led to a delay."""
        return self._delay_s > 0

    def calm(self, life_s: float) -> bool:
        """Returns True if a life was long enough to forget the failures before it."""
        return life_s >= self._calm_s

    def failed(self, life_s: float) -> float:
        """Returns the delay after a failure that ended a life of `life_s`."""
        longer = self._delay_s * 2 if self.active and not self.calm(life_s) else self._first_s
        self._delay_s = min(longer, self._longest_s)
        return self._delay_s

    def forget(self) -> None:
        """Forgets all failures so far."""
        self._delay_s = 0.0


class RestartHistory:
    """Decides about the next start after each death of one slot's process.

    A process that has polled starts again at once, and backs off only when deaths follow each
    other closely. One that never polled backs off from the first failure, and after a number
    of those in a row the slot gives up. A SIGKILL comes from outside, so it neither adds to
    that row nor ends it.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._backoff = Backoff(policy.first_delay_s, policy.longest_delay_s, policy.window_s)
        self._deaths: deque[float] = deque()
        self._failed_starts = 0

    def died(self, *, now: float, life_s: float, polled: bool, killed: bool) -> StartAgain | GiveUp:
        """Returns the next step after a death, by SIGKILL if `killed`; `now` is monotonic."""
        if polled:
            self._failed_starts = 0
        elif not killed:
            self._failed_starts += 1
        if self._failed_starts >= self._policy.failed_starts_max:
            return GiveUp(self._failed_starts)
        return StartAgain(self._delay(now, life_s), self._failed_starts)

    def _delay(self, now: float, life_s: float) -> float:
        self._deaths.append(now)
        while now - self._deaths[0] > self._policy.window_s:
            self._deaths.popleft()
        if self._backoff.active and self._backoff.calm(life_s):
            self._backoff.forget()
            self._deaths = deque([now])
        in_series = len(self._deaths) > self._policy.deaths_at_once
        if in_series or self._backoff.active or self._failed_starts:
            return self._backoff.failed(life_s)
        return 0.0
