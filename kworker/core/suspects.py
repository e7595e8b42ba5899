"""The search for a record that kills its process: suspects run together, in halves, then alone."""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal

from kworker.core.headers import SourcePosition

_ENDED_MOST = 10  # ends kept for each suspect, the last ones


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record whose handler ran when its process died.

    The fields after `place` hold what is known of the deaths of processes that ran this record.
    """

    place: SourcePosition
    why: Literal["crash", "timeout"]
    deaths: int = 0  # of isolated processes that had run nothing but this record
    unsure: int = 0  # of those, by a signal that may have come from outside
    ended: tuple[str, ...] = ()  # the last ends of processes that had it in hand, as text
    since: float = 0.0  # the first of those ends, in seconds since 1970

    def after(self, how: str) -> "Suspect":
        """Returns a copy with `how` added to `ended`.

        One more process has died while it ran this record's handler; `how` says in which way.
        """
        return replace(self, ended=(*self.ended, how)[-_ENDED_MOST:])


class Blame(Enum):
    """The cause of an isolated process's end."""

    NOBODY = auto()  # kworker ended it: the partition was revoked, or nothing was left to do
    HANDLER = auto()  # it crashed, exited, or used up the memory
    UNSURE = auto()  # killed by a signal that may have come from outside
    TIMEOUT = auto()  # kworker ended it, since a handler overran its time


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of an isolated process; `how` is text, such as SIGSEGV or exit code 1."""

    how: str
    blame: Blame


@dataclass(frozen=True, slots=True)
class CountedDeath:
    """A process's death that counts against one record.

    `convicted` is True if the record has reached its limit of deaths, and becomes a dead letter.
    """

    number: int
    suspect: Suspect
    convicted: bool


@dataclass(frozen=True, slots=True)
class TrialPolicy:
    """The number of deaths that convict a record; a convicted record becomes a dead letter.

    A death counts if the process had run nothing but this record. A death by a SIGKILL of unknown
    origin is unsure: the record may have used up the memory, or may have nothing to do with the
    signal. A record is convicted by `crash_limit` deaths that are not unsure, or by `crash_limit` +
    `more_when_unsure` deaths of any kind: chance would hardly strike the same record each time.
    """

    crash_limit: int
    more_when_unsure: int = 2

    def convicts(self, suspect: Suspect) -> bool:
        if suspect.deaths - suspect.unsure >= self.crash_limit:
            return True
        return suspect.deaths >= self.crash_limit + self.more_when_unsure


class Fresh(Enum):
    """The answer of `Trial.begin` that the next run needs a process which has run nothing yet."""

    PROCESS = auto()


class Trial:
    """Decides which suspects (possible causes of a crash) run next, and what each death shows.

    Owned by the poll thread; identifies records by numbers. A run ends when all its records have
    ended, or when the process dies. If the process dies, the records that were running are split
    into two halves. These halves run after all other suspects, so that harmless records are done
    first. A suspect of a time-out runs alone from the start: it may hold up everything that runs
    beside it.
    """

    def __init__(self, policy: TrialPolicy) -> None:
        self._policy = policy
        self._suspects: dict[int, Suspect] = {}
        self._together: list[int] = []  # in hand at no death here
        self._apart: deque[list[int]] = deque()  # groups that a dying process had in hand
        self._running: list[int] = []  # without those that have ended
        self._is_apart = False  # the running records are one of those groups
        self._alone = False  # the process has run nothing but the one that runs

    @property
    def waiting(self) -> int:
        """The number of suspects that are not running now."""
        return len(self._suspects) - len(self._running)

    @property
    def running(self) -> Collection[int]:
        return self._running

    def add(self, number: int, suspect: Suspect) -> None:
        self._suspects[number] = suspect
        if suspect.deaths or suspect.why == "timeout":
            self._apart.append([number])
        else:
            self._together.append(number)

    def begin(self, *, used: bool) -> list[int] | Fresh:
        """Returns the records to run next; the list is empty if no record waits.

        Called when nothing runs. `used` is True if the isolated process has run a record before. A
        suspect that is to run alone must not be blamed for what other records left behind. If
        `used`, it needs a new process: then `Fresh.PROCESS` is returned.
        """
        if not self._together and used and self._apart and len(self._apart[0]) == 1:
            return Fresh.PROCESS
        self._is_apart = not self._together
        if self._together:
            self._running, self._together = self._together, []
        elif self._apart:
            self._running = self._apart.popleft()
        self._alone = len(self._running) == 1 and not used
        return list(self._running)

    def ended(self, number: int) -> None:
        """Removes a record that has an outcome, or whose partition was revoked."""
        if self._suspects.pop(number, None) is None:
            return
        groups = [self._running, self._together, *self._apart]
        for group in groups:
            if number in group:
                group.remove(number)
        self._apart = deque(group for group in self._apart if group)

    def died(self, in_hand: Iterable[int], end: ProcessEnd) -> CountedDeath | None:
        """Notes that the process died while the records `in_hand` ran.

        Returns the death if it counts against a record, else None. A death counts only if the
        process ran a single record in its life. After a time-out, `in_hand` has only the records
        whose handlers ran for too long.
        """
        rest, self._running = self._running, []
        if end.blame is Blame.NOBODY:
            self._put_back(rest)
            return None
        blamed = set(in_hand)
        held = [number for number in rest if number in blamed]
        self._put_back([number for number in rest if number not in blamed])
        if len(rest) == len(held) == 1 and self._alone:
            return self._count(held[0], end)
        half = (len(held) + 1) // 2
        self._apart.extend(group for group in (held[:half], held[half:]) if group)
        return None

    def _put_back(self, numbers: list[int]) -> None:
        """Puts records of an ended run back into the queue from which the run took them.

        These records are not to blame for the end of the run.
        """
        if not self._is_apart:
            self._together += numbers
        elif numbers:
            self._apart.appendleft(numbers)

    def _count(self, number: int, end: ProcessEnd) -> CountedDeath:
        before = self._suspects[number]
        found = replace(
            before.after(end.how),
            why="timeout" if end.blame is Blame.TIMEOUT else "crash",
            deaths=before.deaths + 1,
            unsure=before.unsure + (end.blame is Blame.UNSURE),
        )
        self._suspects[number] = found
        convicted = self._policy.convicts(found)
        if convicted:
            del self._suspects[number]
        else:
            self._apart.append([number])
        return CountedDeath(number, found, convicted)
