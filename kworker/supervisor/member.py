"""One numbered place in the fleet, and the lives that a worker has in it."""

import signal
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from kworker.core.phase import Phase
from kworker.core.restart import GiveUp, RestartHistory, RestartPolicy, StartAgain
from kworker.supervisor.child import ended, send
from kworker.supervisor.scoreboard import Field, Slot


class Asked(Enum):
    """What the supervisor last told a worker."""

    NOTHING = auto()
    DRAIN = auto()
    ABORT = auto()  # it was stuck
    QUIT = auto()


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one life, as the log and the policy want it."""

    code: int  # negative: by that signal
    life_s: float
    polled: bool
    in_hand: int
    asked: Asked
    overdue: bool  # killed because it did not end when asked


class Member:
    """A slot's worker, alive or between lives. Owned by the fleet; times are monotonic seconds."""

    def __init__(self, number: int, slot: Slot, policy: RestartPolicy) -> None:
        self.number = number
        self.slot = slot
        self.pid: int | None = None
        self.lives = 0
        self.start_at: float | None = 0.0  # when the next life is due; None while one goes on
        self.asked = Asked.NOTHING
        self.why_dead = ""
        self._policy = policy
        self._history = RestartHistory(policy)
        self._started = 0.0
        self._kill_at: float | None = None
        self._overdue = False
        self._samples: deque[tuple[float, int]] = deque()

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def phase(self) -> Phase:
        return self.slot.phase if self.alive else Phase.GONE

    @property
    def polled(self) -> bool:
        return bool(self.slot.words[Field.POLLED])

    @property
    def running(self) -> bool:
        """Whether it has joined and takes records."""
        return self.alive and self.phase is Phase.RUNNING and self.asked is Asked.NOTHING

    def begins(self, pid: int, now: float) -> None:
        """A new life has been forked."""
        self.pid = pid
        self.lives += 1
        self.start_at = None
        self.asked = Asked.NOTHING
        self._started = now
        self._kill_at = None
        self._overdue = False
        self._samples.clear()

    def drain(self, kill_at: float, *, leave: bool) -> None:
        """Finish what is in hand and end; `leave` is for ever, so the group shall not wait."""
        self.slot.words[Field.LEAVE] = leave
        if self.alive and self.asked is Asked.NOTHING:
            self._ask(Asked.DRAIN, signal.SIGTERM, kill_at)

    def abort(self, kill_at: float) -> None:
        """Dump your stacks and die; for one that is stuck."""
        self._ask(Asked.ABORT, signal.SIGABRT, kill_at)

    def quit(self, kill_at: float) -> None:
        """End at once."""
        self._ask(Asked.QUIT, signal.SIGQUIT, kill_at)

    def signal(self, signum: int) -> None:
        if self.pid is not None:
            send(self.pid, signum)

    def kill_if_overdue(self, now: float) -> bool:
        """Kills what did not end in its time; True when it did so now."""
        if not self.alive or self._kill_at is None or now < self._kill_at:
            return False
        self._kill_at = None
        self._overdue = True
        self.signal(signal.SIGKILL)
        return True

    def dies(self, code: int, now: float) -> Death:
        """The life is over and reaped."""
        words = self.slot.words
        death = Death(
            code=code,
            life_s=now - self._started,
            polled=self.polled,
            in_hand=words[Field.IN_HAND],
            asked=self.asked,
            overdue=self._overdue,
        )
        self.pid = None
        self.slot.begin(0, int(now * 1e9))
        return death

    def judge(self, death: Death, now: float) -> StartAgain | GiveUp:
        """What the history of this slot says about its next start."""
        killed = death.code == -signal.SIGKILL
        answer = self._history.died(
            now=now, life_s=death.life_s, polled=death.polled, killed=killed
        )
        self.why_dead = ended(death.code)
        if isinstance(answer, StartAgain):
            self.start_at = now + answer.delay_s
        return answer

    def start_afresh(self, now: float) -> None:
        """The next life is due now and the deaths before it are forgotten."""
        self._history = RestartHistory(self._policy)
        if not self.alive:
            self.start_at = now

    def silent_s(self, now: float, since: float) -> float:
        """How long since its last sign of life, counted from `since` at the earliest."""
        return max(0.0, now - max(self.slot.words[Field.HEARTBEAT_NS] / 1e9, since))

    def sample(self, now: float, over_s: float) -> None:
        """Notes the counter that `rate` is made of."""
        self._samples.append((now, self.slot.words[Field.DONE]))
        while now - self._samples[0][0] > over_s:
            self._samples.popleft()

    def rate(self) -> float:
        """Records done a second, over the last samples."""
        if len(self._samples) < 2:
            return 0.0
        (then, before), (now, after) = self._samples[0], self._samples[-1]
        return (after - before) / (now - then)

    def _ask(self, what: Asked, signum: int, kill_at: float) -> None:
        self.asked = what
        self._kill_at = kill_at
        self.signal(signum)
