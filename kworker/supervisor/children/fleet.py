"""The workers: starting them, what each death means, draining them, and how many there are."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable

import structlog
from setproctitle import setproctitle

from kworker import log
from kworker.config.model import Config
from kworker.core.phase import Phase
from kworker.core.restart import GiveUp
from kworker.errors import ExitCode
from kworker.instance.child import exit_text, fork
from kworker.instance.crash_journal import CrashJournal
from kworker.instance.host_lock import HostLock
from kworker.instance.proc import raise_oom_score
from kworker.instance.scoreboard import Field, Scoreboard, Slot, hands_of
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.children.leftovers import Leftovers
from kworker.supervisor.children.worker_process import Death, ExitRequest, WorkerProcess
from kworker.supervisor.limits import Limits

ChildMain = Callable[[Config, Slot, int], int]
"""What a worker does: `worker.run`, or a test's stand-in."""

_log = structlog.get_logger()
_FORK_AGAIN_S = 1.0
_OOM_MORE = 100  # of all memory, 10 %: when it runs out, it is never the supervisor that is ended
_NAMED_MOST = 20  # suspects in a line of the log


class Fleet:
    """Who lives, who starts again and when. Owned by the supervisor, whose thread alone forks."""

    def __init__(
        self,
        config: Config,
        folder: StateFolder,
        worker_main: ChildMain,
        limits: Limits,
        host_lock: HostLock,
    ) -> None:
        self.size = config.workers.processes
        self.workers: list[WorkerProcess] = []
        self.totals: Counter[str] = Counter()  # of those that are gone
        self.draining = False
        self.unfinished = False  # something in hand had to be left to be delivered again
        self.records_left = 0  # records, as far as those that left them knew
        self._folder = folder
        self._journal = CrashJournal(folder.suspects)
        self._worker_main = worker_main
        self._limits = limits
        self.leftovers = Leftovers(limits.left_grace_s, limits.left_term_s)
        self._host_lock = host_lock
        # Its other end is ours alone: when we are gone, however, the workers read an end of file.
        self._lifeline, self._our_end = os.pipe()
        self.apply(config)

    def apply(self, config: Config) -> None:
        """Lives that begin from here on have this configuration, and a board that fits it."""
        self._config = config
        self._hands = hands_of(config.workers)
        processes = max(config.workers.processes, self.size)
        self._board = Scoreboard.for_workers(processes, self._hands)

    @property
    def lifeline(self) -> int:
        """Reads end-of-file in a child when the supervisor is gone."""
        return self._lifeline

    @property
    def size_max(self) -> int:
        """The largest size that needs no restart."""
        return len(self._board.slots)

    @property
    def joined(self) -> bool:
        """Whether every worker has had its assignment, be it an empty one."""
        return len(self.workers) == self.size and all(
            worker.alive and worker.phase >= Phase.RUNNING for worker in self.workers
        )

    def resize(self, size: int, now: float) -> None:
        """More or fewer workers: the highest numbers go, for ever."""
        self.size = size
        have = {worker.number for worker in self.workers}
        for number in range(size):
            if number not in have:
                slot = self._board.slots[number]
                limits = self._limits
                self.workers.append(WorkerProcess(number, slot, limits.restart, limits.wear))
        for worker in self.workers:
            if worker.number >= size:
                self._drain(worker, now, leave=True)
        self.workers = [m for m in self.workers if m.alive or m.number < size]

    def turn(self, now: float) -> None:
        """Starts those whose time has come, kills those whose time is over."""
        self.leftovers.turn(now)
        for worker in self.workers:
            if signal.SIGKILL in worker.send_due_signals(now):
                _log.warning(f"worker {worker.number} did not end in time: killed", pid=worker.pid)
            elif worker.start_at is not None and now >= worker.start_at and not self.draining:
                self._start(worker, now)

    def replace(self, worker: WorkerProcess, now: float) -> None:
        """This worker drains; the next life in its place begins when it is gone."""
        worker.start_afresh(now)
        self._drain(worker, now, leave=False)

    def drain(self, now: float, *, leave: bool) -> None:
        """All finish what is in hand and end; none starts again."""
        self.draining = True
        for worker in self.workers:
            self._drain(worker, now, leave=leave)
        self._remove_ended()

    def quit(self, now: float) -> None:
        """All end at once."""
        self.draining = True
        for worker in self.workers:
            self.unfinished = self.unfinished or bool(worker.slot.words[Field.IN_HAND])
            worker.quit(now + self._limits.quit_s)
        self._remove_ended()

    @property
    def living(self) -> list[WorkerProcess]:
        """Those that have a process."""
        return [worker for worker in self.workers if worker.alive]

    def accept_dead(self) -> int:
        """Every worker lets die what its breaker holds; how many workers there are."""
        alive = self.living
        for worker in alive:
            worker.slot.words[Field.ACCEPT] = 1
        return len(alive)

    def on_exit(self, pid: int, code: int, now: float) -> ExitCode | None:
        """A child was reaped: None, or the code with which the whole service must end."""
        for worker in self.workers:
            if worker.pid == pid:
                self.totals.update(worker.slot.counters())
                death = worker.end_life(code, now)
                self.leftovers.add(worker.number, pid, now)
                # Before the next life, which looks there at its first records.
                self._record_suspects(worker, death)
                return self._handle_death(worker, death, now)
        return None

    def in_hand(self) -> int:
        """Records taken and not settled, in all workers."""
        return self.sum(Field.IN_HAND)

    def sum(self, field: Field) -> int:
        return sum(worker.slot.words[field] for worker in self.workers)

    def counters(self) -> Counter[str]:
        """Every counter since the service started, the dead included."""
        total = self.totals.copy()
        for worker in self.workers:
            total.update(worker.slot.counters())
        return total

    def _start(self, worker: WorkerProcess, now: float) -> None:
        slot = self._board.slots[worker.number]
        slot.begin(0, time.monotonic_ns())
        worker.slot = slot
        config = self._config
        try:
            pid = fork(
                lambda: self._run_child(config, slot), keep=(self._lifeline, *self._host_lock.fds)
            )
        except OSError as error:
            worker.start_at = now + _FORK_AGAIN_S
            _log.warning(
                f"worker {worker.number} cannot be forked ({error.strerror});"
                f" next try in {_FORK_AGAIN_S:g} s"
            )
            return
        slot.words[Field.PID] = pid
        worker.begin_life(pid, now)
        _log.info(f"worker {worker.number} started", worker=worker.number, worker_pid=pid)

    def _run_child(self, config: Config, slot: Slot) -> int:
        """In the child."""
        os.setpgid(0, 0)  # with all that handlers start
        setproctitle(f"kworker: worker {slot.number} [{config.name}] starting")
        raise_oom_score(_OOM_MORE)
        log.identify(worker=slot.number)
        self._folder.join_workers()
        self._host_lock.share()
        return self._worker_main(config, slot, self._lifeline)

    def _drain(self, worker: WorkerProcess, now: float, *, leave: bool) -> None:
        limit = self._config.workers.drain_timeout + self._limits.drain_margin_s
        worker.drain(now + limit, leave=leave)

    def _record_suspects(self, worker: WorkerProcess, death: Death) -> None:
        if not death.suspects:
            return
        places = [(held.topic, held.partition, held.offset) for held in death.suspects]
        how, most = exit_text(death.code), self._hands * self.size_max
        try:
            self._journal.add_suspects(places, death.why, how, time.time(), most)
        except OSError as error:
            problem = f"cannot be written to {self._folder.suspects} ({error.strerror})"
            _log.error(f"suspects of worker {worker.number} {problem}: they run like any other")
            return
        _log.warning(
            f"worker {worker.number} had {len(places)} records in hand: they are suspects and"
            " run in a process of their own",
            why=death.why,
            records=["/".join(map(str, place)) for place in places[:_NAMED_MOST]],
        )

    def _handle_death(self, worker: WorkerProcess, death: Death, now: float) -> ExitCode | None:
        wanted = death.exit_request in (ExitRequest.DRAIN, ExitRequest.QUIT)
        if self.draining or worker.number >= self.size:
            self._count_left_records(worker, death)
            self._remove_ended()
            return None
        if wanted:
            worker.start_afresh(now)
            tell = _log.warning if death.code else _log.info
            how = f"worker {worker.number} ended ({exit_text(death.code)}); it starts again"
            tell(how, in_hand=death.in_hand)
            return None
        if death.code in (ExitCode.CONFIG, ExitCode.ALREADY_RUNNING):
            _log.error(_FATAL_EXITS[ExitCode(death.code)].format(worker.number))
            return ExitCode(death.code)
        return self._restart(worker, death, now)

    def _restart(self, worker: WorkerProcess, death: Death, now: float) -> ExitCode | None:
        answer = worker.plan_restart(death, now)
        how = f"worker {worker.number} exited ({exit_text(death.code)}) after {death.life_s:.1f} s"
        if isinstance(answer, GiveUp):
            _log.error(f"{how}; {answer.failed_starts} starts in a row failed: giving up")
            return ExitCode.GAVE_UP
        when = f"in {answer.delay_s:g} s" if answer.delay_s else "at once"
        most = self._limits.restart.failed_starts_max
        nth = f", {answer.failed_starts} of {most}" if answer.failed_starts else ""
        _log.warning(f"{how}; next start {when}{nth}", worker=worker.number, in_hand=death.in_hand)
        return None

    def _count_left_records(self, worker: WorkerProcess, death: Death) -> None:
        # One that never polled had nothing to finish, however it ended.
        left = death.code == ExitCode.DRAIN_TIMED_OUT or (
            death.polled and death.code != 0 and death.exit_request is not ExitRequest.QUIT
        )
        if left and self.draining:
            self.unfinished = True
            self.records_left += death.in_hand
        tell = _log.warning if left else _log.info
        rest = ": what was in hand is delivered again" if left else ""
        tell(
            f"worker {worker.number} ended ({exit_text(death.code)}){rest}",
            in_hand=death.in_hand,
        )

    def _remove_ended(self) -> None:
        if self.draining:
            self.workers = [worker for worker in self.workers if worker.alive]
        else:
            self.workers = [m for m in self.workers if m.alive or m.number < self.size]


_FATAL_EXITS = {
    ExitCode.CONFIG: "worker {} cannot run with this configuration: the service ends, fix it first",
    ExitCode.ALREADY_RUNNING: "worker {} was fenced by a twin of its identity: the service ends;"
    " give each its own `instance`",
}
