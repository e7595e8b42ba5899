"""The restart of dead processes: back-off, the limit of failed starts, series of crashes."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The delays between restarts of a process, and the limit of failed starts."""

    window_s: float = 10.0  # deaths closer together than this are a series
    deaths_at_once: int = 2  # of a series, the first that restart without a delay
    first_delay_s: float = 1.0
    longest_delay_s: float = 30.0
    failed_starts_max: int = 5  # deaths in a row before the first poll, other than by SIGKILL
    crashes_at_once: int = 2  # of a series, the first after which records run in the worker itself
    crash_calm_s: float = 120.0  # a worker that lives longer ends a series of crashes
    isolate_first_s: float = 60.0
    isolate_longest_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class StartAgain:
    """The decision to restart a process after `delay_s`.

    `failed_starts` is the number of starts that have failed in a row.
    """

    delay_s: float
    failed_starts: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The decision not to start a process again: too many starts in a row have failed."""

    failed_starts: int


class Backoff:
    """A delay that doubles with each failure, and is reset once the process has lived long."""

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
        """Returns True if a process lived for so long that its earlier failures expire."""
        return life_s >= self._calm_s

    def failed(self, life_s: float) -> float:
        """Notes the failure of a process that lived for `life_s`; returns the next delay."""
        longer = self._delay_s * 2 if self.active and not self.calm(life_s) else self._first_s
        self._delay_s = min(longer, self._longest_s)
        return self._delay_s

    def forget(self) -> None:
        """Forgets all failures so far."""
        self._delay_s = 0.0


class RestartHistory:
    """Decides, at each death of the process in one slot, if and when the process is restarted.

    A process that has polled Kafka is restarted at once; but if deaths follow each other closely,
    it is restarted after a delay. A process that dies before its first poll is a failed start. Each
    failed start is followed by a delay; after too many in a row the process is not restarted. A
    SIGKILL comes from outside: before the first poll, it neither counts as a failed start nor
    resets the number of failed starts.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._backoff = Backoff(policy.first_delay_s, policy.longest_delay_s, policy.window_s)
        self._deaths: deque[float] = deque()
        self._failed_starts = 0

    def died(self, *, now: float, life_s: float, polled: bool, killed: bool) -> StartAgain | GiveUp:
        """Decides if and when the process is started again after its death at `now`.

        `now` is in monotonic seconds. `killed` is True if SIGKILL ended the process.
        """
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


class CrashSeries:
    """Decides, at each death of a worker, for how long the next one isolates all of its records.

    To isolate a record is to run it in a process apart from the worker. As a rule a worker dies of
    a record that it is running, and this record is isolated. But what a handler leaves behind, such
    as a thread of a native library, may crash the process after the handler's record has ended.
    Nothing shows which record caused the crash, and until that record is committed, each next
    worker gets it again. So after some crashes in a row all records are isolated for a while: then
    the worker does not die, and commits the record.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._crashes = 0
        self.isolate_s = 0.0  # for the next worker; 0 if it isolates suspects only

    def ended(self, life_s: float, *, crashed: bool) -> None:
        """Notes the end of a worker; only a crash adds to the series.

        A long life of the worker ends the series of earlier crashes. The time for which all of
        its records were isolated does not count as a part of that life.
        """
        policy = self._policy
        if life_s > self.isolate_s + policy.crash_calm_s:
            self._crashes, self.isolate_s = 0, 0.0
        if not crashed:
            return
        self._crashes += 1
        if (beyond := self._crashes - policy.crashes_at_once) > 0:
            longer = self.isolate_s * 2 if beyond > 1 else policy.isolate_first_s
            self.isolate_s = min(longer, policy.isolate_longest_s)
