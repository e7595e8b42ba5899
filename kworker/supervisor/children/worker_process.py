"""One numbered place in the fleet, and the lives that a worker has in it."""

import signal
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from kworker.core.phase import Phase
from kworker.core.restart import GiveUp, RestartHistory, RestartPolicy, StartAgain
from kworker.core.wear import Wear, WearPolicy
from kworker.instance.child import exit_text, send_signal
from kworker.instance.exit_plan import ExitPlan
from kworker.instance.proc import CpuSample
from kworker.instance.scoreboard import Field, Held, Slot

# Nobody's handler sends these to its own process; from outside they mean to end it.
_WANTED = (-signal.SIGQUIT, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


class ExitRequest(Enum):
    """What the supervisor last told a worker."""

    NONE = auto()
    DRAIN = auto()
    ABORT = auto()  # it was stuck: SIGUSR1, SIGTERM, SIGABRT, SIGKILL
    QUIT = auto()


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one life, as the log and the policy want it."""

    code: int  # negative: by that signal
    life_s: float
    polled: bool
    in_hand: int
    exit_request: ExitRequest
    overdue: bool  # killed because it did not end when asked
    suspects: tuple[Held, ...]  # the records that this death may be the doing of
    why: Literal["crash", "timeout"]  # they are suspects


class WorkerProcess:
    """A slot's worker, alive or between lives. Owned by the fleet; times are monotonic seconds."""

    def __init__(
        self, number: int, slot: Slot, policy: RestartPolicy, wear: WearPolicy | None = None
    ) -> None:
        self.number = number
        self.slot = slot
        self.pid: int | None = None
        self.lives = 0
        self.restarts = 0  # lives after a death that nobody had planned
        self.start_at: float | None = 0.0  # when the next life is due; None while one goes on
        self.exit_request = ExitRequest.NONE
        self.last_exit = ""
        self.wear = Wear(wear or WearPolicy())
        self.size_problem = ""  # why it is red by its size
        self.cpu_sample: CpuSample | None = None  # while it is silent
        self._policy = policy
        self._history = RestartHistory(policy)
        self._ended_unplanned = False  # the last end
        self._started = 0.0
        self._exit_plan = ExitPlan()
        self._overdue = False
        self._stuck_on: tuple[Held, ...] = ()
        self._samples: deque[tuple[float, int]] = deque()

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def replacements(self) -> int:
        """Lives after an end that was planned: a rolling restart, a reload, memory, max_records."""
        return max(self.lives - 1 - self.restarts, 0)

    @property
    def phase(self) -> Phase:
        return self.slot.phase if self.alive else Phase.GONE

    @property
    def polled(self) -> bool:
        return bool(self.slot.words[Field.POLLED])

    @property
    def running(self) -> bool:
        """Whether it has joined and takes records."""
        return self.alive and self.phase is Phase.RUNNING and self.exit_request is ExitRequest.NONE

    def begin_life(self, pid: int, now: float) -> None:
        """A new life has been forked."""
        self.pid = pid
        self.restarts += self._ended_unplanned
        self._ended_unplanned = False
        self.lives += 1
        self.start_at = None
        self.exit_request = ExitRequest.NONE
        self._started = now
        self._exit_plan = ExitPlan()
        self._overdue = False
        self._stuck_on = ()
        self.cpu_sample = None
        self.wear.begins(now)
        self.size_problem = ""
        self._samples.clear()

    def drain(self, kill_at: float, *, leave: bool) -> None:
        """Finish what is in hand and end; `leave` is for ever, so the group shall not wait."""
        self.slot.words[Field.LEAVE] = leave
        if self.alive and self.exit_request is ExitRequest.NONE:
            self.slot.words[Field.DRAIN] = 1
            self._request_exit(ExitRequest.DRAIN, ExitPlan([(kill_at, signal.SIGKILL)]))
            self.signal(signal.SIGTERM)

    def abort(self, exit_plan: ExitPlan, stuck_on: tuple[Held, ...]) -> None:
        """For one that is stuck: those of `stuck_on` that it holds to the end are suspects."""
        self._stuck_on = stuck_on
        self._request_exit(ExitRequest.ABORT, exit_plan)

    def quit(self, kill_at: float) -> None:
        """End at once."""
        self._request_exit(ExitRequest.QUIT, ExitPlan([(kill_at, signal.SIGKILL)]))
        self.signal(signal.SIGQUIT)

    def signal(self, signum: int) -> None:
        if self.pid is not None:
            send_signal(self.pid, signum)

    def send_due_signals(self, now: float) -> list[int]:
        """Sends what is due to one that was asked to end; the signals that it sent now."""
        due = self._exit_plan.due(now) if self.alive else []
        for signum in due:
            self.signal(signum)
        self._overdue = self._overdue or signal.SIGKILL in due
        return due

    def end_life(self, code: int, now: float) -> Death:
        """The life is over and reaped."""
        words = self.slot.words
        death = Death(
            code=code,
            life_s=now - self._started,
            polled=self.polled,
            in_hand=words[Field.IN_HAND],
            exit_request=self.exit_request,
            overdue=self._overdue,
            suspects=self._suspects(code),
            why="timeout" if self.exit_request is ExitRequest.ABORT else "crash",
        )
        self.pid = None
        self.slot.begin(0, int(now * 1e9))
        return death

    def plan_restart(self, death: Death, now: float) -> StartAgain | GiveUp:
        """What the history of this slot says about its next start."""
        self._ended_unplanned = True
        killed = death.code == -signal.SIGKILL
        answer = self._history.died(
            now=now, life_s=death.life_s, polled=death.polled, killed=killed
        )
        self.last_exit = exit_text(death.code)
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

    def _suspects(self, code: int) -> tuple[Held, ...]:
        """None where somebody wanted this end, or it came in order."""
        if self.exit_request is ExitRequest.ABORT:
            return tuple(held for held in self.slot.held() if held in self._stuck_on)
        unbidden = self.exit_request is ExitRequest.NONE and code not in _WANTED
        if not unbidden or self.slot.phase is Phase.GONE:
            return ()
        return tuple(self.slot.held())

    def _request_exit(self, what: ExitRequest, exit_plan: ExitPlan) -> None:
        self.exit_request = what
        self._exit_plan = exit_plan
