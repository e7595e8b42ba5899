"""The worker of one slot: its process, the requests to end it, and the history of its lives."""

import signal
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, NamedTuple

from kworker.core.phase import Phase
from kworker.core.restart import CrashSeries, GiveUp, RestartHistory, RestartPolicy, StartAgain
from kworker.core.wear import Wear, WearPolicy
from kworker.instance.child import exit_text, send_signal
from kworker.instance.exit_plan import ExitPlan
from kworker.instance.hand import Held
from kworker.instance.proc import CpuSample
from kworker.instance.scoreboard import Slot
from kworker.instance.scoreboard_fields import Field

_SAMPLED_S = 0.2  # the shortest time in which a thread's use of the CPU shows
# Exits by signals that come from outside to end the process, never from a handler's crash.
_INTENDED_EXITS = (-signal.SIGQUIT, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


class ExitRequest(Enum):
    """The way in which the supervisor last requested a worker to end; NONE if it did not."""

    NONE = auto()
    DRAIN = auto()
    ABORT = auto()  # because it is stuck: SIGUSR1, SIGTERM, SIGABRT, SIGKILL
    QUIT = auto()


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one process of a worker, for the log and the restart policy.

    The process had lived for `life_s` seconds, and had polled Kafka at least once if `polled` is
    True. `in_hand` is the number of its records without a durable outcome.
    """

    code: int  # a negative code is a signal
    life_s: float
    polled: bool
    in_hand: int
    exit_request: ExitRequest
    suspects: tuple[Held, ...]  # the records that may have caused this death
    why: Literal["crash", "timeout"]  # the kind of suspicion
    crashed: bool  # the process, or what it ran, ended it: not a signal from outside, nor SIGKILL


class Totals(NamedTuple):
    """A process's finished records, and its handlers' run time, up to `at` (monotonic seconds)."""

    at: float
    done: int  # records
    busy_s: float  # of its handlers, together


class WorkerProcess:
    """The processes of one worker, one at a time, which use one slot of the scoreboard.

    Owned by the fleet. Times are monotonic seconds.
    """

    def __init__(
        self, number: int, slot: Slot, policy: RestartPolicy, wear: WearPolicy | None = None
    ) -> None:
        self.number = number
        self.slot = slot
        self.pid: int | None = None
        self.lives = 0
        self.restarts = 0  # lives after an unplanned death
        self.start_at: float | None = 0.0  # of the next life; None while one goes on
        self.exit_request = ExitRequest.NONE
        self.last_exit = ""
        self.wear = Wear(wear or WearPolicy())
        self.size_problem = ""  # over `memory`, and not to be replaced again so soon
        self._policy = policy
        self._history = RestartHistory(policy)
        self._crashes = CrashSeries(policy)
        self._ended_unplanned = False  # the last end
        self._started = 0.0
        self._exit_plan = ExitPlan()
        self._stuck_on: tuple[Held, ...] = ()
        self._abort_at = 0.0
        self._cpu_sample: CpuSample | None = None  # when the abort began
        self._busy_threads: set[int] = set()  # since then
        self._samples: deque[Totals] = deque()

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def replacements(self) -> int:
        """The number of times that the process was replaced on purpose, not after a failure.

        The reasons are a restart, a reload, `memory` and `max_records`.
        """
        return max(self.lives - 1 - self.restarts, 0)

    @property
    def isolate_s(self) -> float:
        """The seconds for which the next process isolates all records; see `CrashSeries`."""
        return self._crashes.isolate_s

    @property
    def phase(self) -> Phase:
        return self.slot.phase if self.alive else Phase.GONE

    @property
    def polled(self) -> bool:
        return bool(self.slot.words[Field.POLLED])

    @property
    def running(self) -> bool:
        """True if the process has joined its group, takes records and has not been told to end."""
        return self.alive and self.phase is Phase.RUNNING and self.exit_request is ExitRequest.NONE

    def begin_life(self, pid: int, now: float) -> None:
        """Notes that a new process has been forked for this worker."""
        self.pid = pid
        self.restarts += self._ended_unplanned
        self._ended_unplanned = False
        self.lives += 1
        self.start_at = None
        self.exit_request = ExitRequest.NONE
        self._started = now
        self._exit_plan = ExitPlan()
        self._stuck_on = ()
        self._cpu_sample = None
        self._busy_threads = set()
        self.wear.begins(now)
        self.size_problem = ""
        self._samples.clear()

    def drain(self, kill_at: float, *, leave: bool) -> None:
        """Requests that the process finishes its records and ends; kills it at `kill_at`.

        With `leave` the process leaves its consumer group, since no other process takes its slot.
        """
        self.slot.words[Field.LEAVE] = leave
        if self.alive and self.exit_request is ExitRequest.NONE:
            self.slot.words[Field.DRAIN] = 1
            self._request_exit(ExitRequest.DRAIN, ExitPlan([(kill_at, signal.SIGKILL)]))
            self.signal(signal.SIGTERM)

    def abort(self, exit_plan: ExitPlan, stuck_on: tuple[Held, ...], now: float) -> None:
        """Ends a stuck process by the signals of `exit_plan`.

        Records of `stuck_on` become suspects if the process still has them when it dies, and with
        them those that have run for as long by then. If no thread can run, the suspects are the
        records of the thread that uses the CPU, or all if none does. A record that the process
        begins after this call is no suspect.
        """
        self._stuck_on = stuck_on
        self._abort_at = now
        self._cpu_sample = CpuSample(self.pid, now) if self.pid else None
        self._request_exit(ExitRequest.ABORT, exit_plan)

    def watch_threads(self, now: float) -> None:
        """Notes which threads of a stuck process use the CPU, until SIGABRT is sent."""
        if self._cpu_sample and now - self._abort_at >= _SAMPLED_S:
            self._busy_threads = self._cpu_sample.busy_threads(now) or self._busy_threads

    def quit(self, kill_at: float) -> None:
        """Requests that the process ends at once; kills it at `kill_at`."""
        self._request_exit(ExitRequest.QUIT, ExitPlan([(kill_at, signal.SIGKILL)]))
        self.signal(signal.SIGQUIT)

    def signal(self, signum: int) -> None:
        if self.pid is not None:
            send_signal(self.pid, signum)

    def send_due_signals(self, now: float) -> list[int]:
        """Sends the signals of the exit plan that are due now, and returns them."""
        due = self._exit_plan.due(now) if self.alive else []
        for signum in due:
            self.signal(signum)
        if signal.SIGABRT in due:
            self._cpu_sample = None
        return due

    def end_life(self, code: int, now: float) -> Death:
        """Returns the facts of a reaped process's death, and clears its scoreboard slot."""
        words = self.slot.words
        death = Death(
            code=code,
            life_s=now - self._started,
            polled=self.polled,
            in_hand=words[Field.IN_HAND],
            exit_request=self.exit_request,
            suspects=self._suspects(code, now),
            why="timeout" if self.exit_request is ExitRequest.ABORT else "crash",
            crashed=self.polled and self._crashed(code) and code != -signal.SIGKILL,
        )
        self.pid = None
        self._samples.clear()  # the next life counts from 0
        self.slot.begin(0, int(now * 1e9))
        return death

    def plan_restart(self, death: Death, now: float) -> StartAgain | GiveUp:
        """Decides by the earlier deaths in this slot when to start again, or to give up."""
        self._ended_unplanned = True
        self._crashes.ended(death.life_s, crashed=death.crashed)
        killed = death.code == -signal.SIGKILL
        answer = self._history.died(
            now=now, life_s=death.life_s, polled=death.polled, killed=killed
        )
        self.last_exit = exit_text(death.code)
        if isinstance(answer, StartAgain):
            self.start_at = now + answer.delay_s
        return answer

    def start_afresh(self, now: float) -> None:
        """Forgets earlier deaths; makes the next start due at once if no process runs."""
        self._history = RestartHistory(self._policy)
        self._crashes = CrashSeries(self._policy)
        if not self.alive:
            self.start_at = now

    def silent_s(self, now: float, since: float) -> float:
        """Returns the seconds since the last heartbeat or `since`, whichever is later."""
        return max(0.0, now - max(self.slot.words[Field.HEARTBEAT_NS] / 1e9, since))

    def sample(self, now: float, over_s: float) -> None:
        """Notes totals for `rate` and `utilisation`; drops samples over `over_s` seconds old.

        Does nothing while the worker has no running process.
        """
        if not self.alive:
            return
        self._samples.append(Totals(now, self.slot.words[Field.DONE], self.slot.busy_s(now)))
        while now - self._samples[0].at > over_s:
            self._samples.popleft()

    def rate(self) -> float:
        """Returns the records done per second, as computed from the samples that `sample` keeps."""
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        return (last.done - first.done) / (last.at - first.at)

    def utilisation(self) -> float | None:
        """Returns how busy the handlers were, from 0 to 1; None if that is not known yet.

        Computed from the samples that `sample` keeps. Runs in the isolated process do not count.
        """
        handlers = self.slot.words[Field.HANDLERS]
        if len(self._samples) < 2 or not handlers:
            return None
        first, last = self._samples[0], self._samples[-1]
        share = (last.busy_s - first.busy_s) / ((last.at - first.at) * handlers)
        return min(1.0, max(0.0, share))  # the two parts of `busy_s` are not read at once

    def _suspects(self, code: int, now: float) -> tuple[Held, ...]:
        """Returns the records that may have caused this death; none if the end was intended."""
        held = self.slot.held()
        if self.exit_request is ExitRequest.ABORT:
            return self._stuck_records(held, now) if self._stuck_on else ()
        return tuple(held) if self._crashed(code) else ()

    def _stuck_records(self, held: list[Held], now: float) -> tuple[Held, ...]:
        """Returns those of the records `held` that may be what a stuck process was stuck on.

        A record that stops a whole process or event loop may have begun last of all. Then the
        records which it keeps from going on are over the time-out before it is.
        """
        old = tuple(each for each in held if each.since_ns / 1e9 <= self._abort_at)
        beats = self.slot.words[Field.HEARTBEAT_NS] / 1e9 >= self._abort_at
        # Where threads run, the main thread notes the SIGTERM, and the poll thread a heartbeat.
        if self.slot.phase.taking and not beats:
            return tuple(each for each in old if each.thread in self._busy_threads) or old
        newest_ns = max(each.since_ns for each in self._stuck_on)
        waited_s = now - self._abort_at
        return tuple(each for each in old if each.since_ns <= newest_ns + waited_s * 1e9)

    def _crashed(self, code: int) -> bool:
        """Returns True if nobody asked the process to end, and it died before its phase GONE."""
        intended = self.exit_request is not ExitRequest.NONE or code in _INTENDED_EXITS
        return not intended and self.slot.phase is not Phase.GONE

    def _request_exit(self, request: ExitRequest, exit_plan: ExitPlan) -> None:
        self.exit_request = request
        self._exit_plan = exit_plan
