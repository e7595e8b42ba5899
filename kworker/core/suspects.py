"""Who kills the process: suspects run together, are halved after a death, and convicted alone."""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal

from kworker.core.headers import SourcePosition

_ENDED_MOST = 10  # of a suspect's list, the last


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record that was in hand when a process died, and what was found since."""

    place: SourcePosition
    why: Literal["crash", "timeout"]
    deaths: int = 0  # of a cell that had run nothing but this record
    unsure: int = 0  # of those, by a signal that somebody may have sent
    ended: tuple[str, ...] = ()  # how the processes ended that had it in hand, the last ones
    since: float = 0.0  # seconds since 1970: the first of those ends

    def after(self, how: str) -> "Suspect":
        """The same after one more end of a process that had it in hand."""
        return replace(self, ended=(*self.ended, how)[-_ENDED_MOST:])


class Blame(Enum):
    """Whose doing the end of a cell is."""

    NOBODY = auto()  # kworker's own: the partition went away, or nothing was left to do
    HANDLER = auto()  # it crashed, left, or used up the memory
    UNSURE = auto()  # killed by a signal that anybody may send
    TIMEOUT = auto()  # ended since a handler overran its time


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a cell ended: `how` for a person, such as SIGSEGV or exit code 1."""

    how: str
    blame: Blame


@dataclass(frozen=True, slots=True)
class CountedDeath:
    """A death was one more of this record, and perhaps its last."""

    number: int
    suspect: Suspect
    convicted: bool


@dataclass(frozen=True, slots=True)
class TrialPolicy:
    """After how many deaths alone a record is convicted.

    A kill by nobody knows whom may be the system's, which is short of memory because of
    this very record, or somebody's whom it has nothing to do with. So those alone convict
    only after more: that chance strikes the same record each time is ruled out by number.
    """

    crash_limit: int
    more_when_unsure: int = 2

    def convicts(self, suspect: Suspect) -> bool:
        if suspect.deaths - suspect.unsure >= self.crash_limit:
            return True
        return suspect.deaths >= self.crash_limit + self.more_when_unsure


class Fresh(Enum):
    """The next run needs a cell that has run nothing yet."""

    CELL = auto()


class Trial:
    """Which suspects run next, and what each death says. Records are numbers here.

    Owned by the poll thread. A run ends when all its records have, or the cell dies. Those
    in its hands then are halved, and go behind the ones that were in nobody's hands, so
    that the innocent are done first. What was left by a time-out runs alone from the start:
    it may hold up all that runs beside it.
    """

    def __init__(self, policy: TrialPolicy) -> None:
        self._policy = policy
        self._suspects: dict[int, Suspect] = {}
        self._together: list[int] = []  # nothing is known against them
        self._apart: deque[list[int]] = deque()  # each was in a dying process's hands
        self._running: list[int] = []  # and not ended
        self._is_apart = False  # what runs is one of those groups
        self._alone = False  # the cell has run nothing but the one that runs

    @property
    def waiting(self) -> int:
        """Suspects that do not run."""
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
        """What the cell runs next, none when nothing waits; called when nothing runs.

        `used`: this cell has run something. A record that was in hand at a death must not
        answer for what others left behind, so it gets a cell of its own.
        """
        if not self._together and used and self._apart and len(self._apart[0]) == 1:
            return Fresh.CELL
        self._is_apart = not self._together
        if self._together:
            self._running, self._together = self._together, []
        elif self._apart:
            self._running = self._apart.popleft()
        self._alone = len(self._running) == 1 and not used
        return list(self._running)

    def ended(self, number: int) -> None:
        """It has an outcome, or its partition went away: no more is asked of it."""
        if self._suspects.pop(number, None) is None:
            return
        groups = [self._running, self._together, *self._apart]
        for group in groups:
            if number in group:
                group.remove(number)
        self._apart = deque(group for group in self._apart if group)

    def died(self, in_hand: Iterable[int], end: ProcessEnd) -> CountedDeath | None:
        """The cell is gone with these in its hands (at a time-out: those that overran)."""
        rest, self._running = self._running, []
        if end.blame is Blame.NOBODY:
            self._put_back(rest)
            return None
        hands = set(in_hand)
        held = [number for number in rest if number in hands]
        self._put_back([number for number in rest if number not in hands])
        if len(rest) == len(held) == 1 and self._alone:
            return self._count(held[0], end)
        half = (len(held) + 1) // 2
        self._apart.extend(group for group in (held[:half], held[half:]) if group)
        return None

    def _put_back(self, numbers: list[int]) -> None:
        """This death says nothing of them."""
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
