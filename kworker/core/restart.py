"""When a dead process starts again, and when not: back-off and the crash-loop limit."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The numbers of DESIGN 7.1."""

    window_s: float = 10.0  # deaths closer together than this are a series
    deaths_at_once: int = 2  # of a series, these are answered without a delay
    first_delay_s: float = 1.0
    longest_delay_s: float = 30.0
    failed_starts_max: int = 5  # deaths in a row before the first poll, other than by SIGKILL


@dataclass(frozen=True, slots=True)
class StartAgain:
    """The process starts again after `delay_s`; `failed_starts` is how near the limit it is."""

    delay_s: float
    failed_starts: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Starting again cannot help: so many starts have failed in a row."""

    failed_starts: int


class Backoff:
    """A delay that doubles with each failure and begins anew after a calm life."""

    def __init__(self, first_s: float, longest_s: float, calm_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._calm_s = calm_s
        self._delay_s = 0.0

    @property
    def active(self) -> bool:
        """Whether the last failure was answered with a delay."""
        return self._delay_s > 0

    def calm(self, life_s: float) -> bool:
        """Whether a life was long enough to forget the failures before it."""
        return life_s >= self._calm_s

    def failed(self, life_s: float) -> float:
        """The delay after a failure that ended a life of `life_s`."""
        longer = self._delay_s * 2 if self.active and not self.calm(life_s) else self._first_s
        self._delay_s = min(longer, self._longest_s)
        return self._delay_s

    def forget(self) -> None:
        """The next failure is the first."""
        self._delay_s = 0.0


class RestartHistory:
    """The deaths of one slot, and what each means for the next start.

    Two rules meet here. A slot that polled starts again at once, and backs off
    only when deaths come close together. A start that never polled backs off
    from the first failure, and a row of those is given up; a SIGKILL is
    somebody's doing, so it neither adds to that row nor ends it.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._backoff = Backoff(policy.first_delay_s, policy.longest_delay_s, policy.window_s)
        self._deaths: deque[float] = deque()
        self._failed_starts = 0

    def died(self, *, now: float, life_s: float, polled: bool, killed: bool) -> StartAgain | GiveUp:
        """Told of each death, once; `killed` is death by SIGKILL, times are monotonic seconds."""
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
