"""The workers: their number, their starts, the consequences of their deaths, and their drain."""

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
from kworker.instance.scoreboard import Scoreboard, Slot, hands_of
from kworker.instance.scoreboard_fields import Field
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.children.leftovers import Leftovers
from kworker.supervisor.children.worker_process import Death, ExitRequest, WorkerProcess
from kworker.supervisor.limits import Limits

ChildMain = Callable[[Config, Slot, int], int]
"""The main function of a child: `worker.run`, `process.run` of the delay process, or a test's."""

_LOG = structlog.get_logger()
_FORK_AGAIN_S = 1.0
_OOM_SCORE_MORE = 100  # like 10 % of all memory: the kernel kills a worker, never the supervisor
_LOGGED_MAX = 20  # suspects in a log line


class Fleet:
    """Starts, restarts and drains the worker processes. Owned by the supervisor's only thread."""

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
        self.unfinished = False  # True if records in hand were left to be redelivered
        self.records_left = 0  # their number, as far as the workers that left them knew it
        self.leftovers = Leftovers(limits.left_grace_s, limits.left_term_s)
        self._counters_of_dead: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()  # unplanned ones, by how the worker exited
        self.replacements: Counter[str] = Counter()  # planned ones, by their reason
        self._draining = False
        self._folder = folder
        self._journal = CrashJournal(folder.suspects)
        self._worker_main = worker_main
        self._limits = limits
        self._host_lock = host_lock
        # The supervisor alone has the other end: when it is gone, a child reads end-of-file here.
        self.lifeline, self._lifeline_end = os.pipe()
        self.apply(config)

    def apply(self, config: Config) -> None:
        """Sets the configuration, and a new scoreboard, for workers that start from now on."""
        self._config = config
        self._hands = hands_of(config.workers)
        processes = max(config.workers.processes, self.size)
        self._board = Scoreboard.for_workers(processes, self._hands)

    @property
    def size_max(self) -> int:
        """The largest possible number of workers: the number of the scoreboard's slots."""
        return len(self._board.slots)

    @property
    def joined(self) -> bool:
        """True if every worker has received a partition assignment, which may be empty."""
        return len(self.workers) == self.size and all(
            worker.alive and worker.phase >= Phase.RUNNING for worker in self.workers
        )

    def scale(self, size: int, now: float) -> None:
        """Resizes the fleet at an operator's request. Refuses and logs a size out of range."""
        if not 1 <= size <= self.size_max:
            _LOG.warning(
                f"refused to run {size} workers: 1 to {self.size_max} are possible; for"
                " more, raise workers.processes and reload"
            )
            return
        _LOG.info("changing the number of workers", workers=size, before=self.size)
        self.resize(size, now)

    def resize(self, size: int, now: float) -> None:
        """Sets the number of workers; surplus workers are drained, and leave the consumer group."""
        self.size = size
        present = {worker.number for worker in self.workers}
        for number in range(size):
            if number not in present:
                slot = self._board.slots[number]
                limits = self._limits
                self.workers.append(WorkerProcess(number, slot, limits.restart, limits.wear))
        for worker in self.workers:
            if worker.number >= size:
                self._drain(worker, now, leave=True)
        self._remove_ended()

    def turn(self, now: float) -> None:
        """Starts workers whose start is due, and kills workers that did not end in time."""
        self.leftovers.turn(now)
        for worker in self.workers:
            if signal.SIGKILL in worker.send_due_signals(now):
                _LOG.warning(
                    f"worker {worker.number} did not end in time: killed, so its unfinished records"
                    " will be redelivered",
                    pid=worker.pid,
                )
            elif worker.start_at is not None and now >= worker.start_at and not self._draining:
                self._start(worker, now)

    def replace(self, worker: WorkerProcess, reason: str, now: float) -> None:
        """Drains this worker; once it has ended, a new process starts in its place."""
        self.replacements[reason] += 1
        worker.start_afresh(now)
        self._drain(worker, now, leave=False)

    def drain(self, now: float, *, leave: bool) -> None:
        """Lets all workers finish the records that they have taken, and end; none starts again."""
        self._draining = True
        for worker in self.workers:
            self._drain(worker, now, leave=leave)
        self._remove_ended()

    def quit(self, now: float) -> None:
        """Ends all workers at once; their unfinished records will be redelivered."""
        self._draining = True
        for worker in self.workers:
            self.unfinished = self.unfinished or bool(worker.slot.words[Field.IN_HAND])
            worker.quit(now + self._limits.quit_s)
        self._remove_ended()

    @property
    def living(self) -> list[WorkerProcess]:
        """The workers that have a running process."""
        return [worker for worker in self.workers if worker.alive]

    def accept_dead(self) -> int:
        """Has living workers write the dead letters that they hold; returns how many workers."""
        alive = self.living
        for worker in alive:
            worker.slot.words[Field.ACCEPT] = 1
        return len(alive)

    def on_exit(self, pid: int, code: int, now: float) -> ExitCode | None:
        """Plans the restart of a worker that exited; returns a code if the service must end."""
        for worker in self.workers:
            if worker.pid == pid:
                self._counters_of_dead.update(worker.slot.counters())
                death = worker.end_life(code, now)
                self.leftovers.add(worker.number, pid, now)
                # Before the restart, because a new worker reads the journal at its first records.
                self._record_suspects(worker, death)
                return self._handle_death(worker, death, now)
        return None

    def in_hand(self) -> int:
        """Returns the number of records, of all workers, that have no durable outcome yet."""
        return self.sum(Field.IN_HAND)

    def sum(self, field: Field) -> int:
        return sum(worker.slot.words[field] for worker in self.workers)

    def counters(self) -> Counter[str]:
        """Returns each counter's total since the service started, ended workers included."""
        total = self._counters_of_dead.copy()
        for worker in self.workers:
            total.update(worker.slot.counters())
        return total

    def _start(self, worker: WorkerProcess, now: float) -> None:
        slot = self._board.slots[worker.number]
        slot.begin(0, time.monotonic_ns())
        slot.words[Field.ISOLATE_S] = int(worker.isolate_s)
        worker.slot = slot
        config = self._config
        try:
            pid = fork(
                lambda: self._run_child(config, slot), keep=(self.lifeline, *self._host_lock.fds)
            )
        except OSError as error:
            worker.start_at = now + _FORK_AGAIN_S
            _LOG.warning(
                f"worker {worker.number} cannot be forked ({error.strerror});"
                f" next try in {_FORK_AGAIN_S:g} s"
            )
            return
        slot.words[Field.PID] = pid
        worker.begin_life(pid, now)
        _LOG.info(f"worker {worker.number} started", worker=worker.number, worker_pid=pid)

    def _run_child(self, config: Config, slot: Slot) -> int:
        os.setpgid(0, 0)  # a group of its own, with all processes that handlers start
        setproctitle(f"kworker: worker {slot.number} [{config.name}] starting")
        raise_oom_score(_OOM_SCORE_MORE)
        log.identify(worker=slot.number)
        log.capture_prints(config.log)
        self._folder.join_workers()
        self._host_lock.share()
        return self._worker_main(config, slot, self.lifeline)

    def _drain(self, worker: WorkerProcess, now: float, *, leave: bool) -> None:
        limit = self._config.workers.drain_timeout + self._limits.drain_margin_s
        worker.drain(now + limit, leave=leave)

    def _record_suspects(self, worker: WorkerProcess, death: Death) -> None:
        if not death.suspects:
            return
        places = [(held.topic, held.partition, held.offset) for held in death.suspects]
        cause, count_max = exit_text(death.code), self._hands * self.size_max
        try:
            self._journal.add_suspects(places, death.why, cause, time.time(), count_max)
        except OSError as error:
            _LOG.error(
                f"the records that may have ended worker {worker.number} cannot be written to"
                f" {self._folder.suspects} ({error.strerror}): they will run like other records,"
                " not in an isolated process"
            )
            return
        _LOG.warning(
            f"worker {worker.number} had {len(places)} unfinished records, which may have caused"
            " its end: they will run in an isolated process",
            why=death.why,
            records=["{}:{}:{}".format(*place) for place in places[:_LOGGED_MAX]],
        )

    def _handle_death(self, worker: WorkerProcess, death: Death, now: float) -> ExitCode | None:
        if self._draining or worker.number >= self.size:
            self._count_left_records(worker, death)
            self._remove_ended()
            return None
        if death.exit_request in (ExitRequest.DRAIN, ExitRequest.QUIT):
            worker.start_afresh(now)
            write = _LOG.warning if death.code else _LOG.info
            event = f"worker {worker.number} ended ({exit_text(death.code)}); starting it again"
            write(event, in_hand=death.in_hand)
            return None
        if death.code in (ExitCode.CONFIG, ExitCode.ALREADY_RUNNING):
            _LOG.error(_FATAL_EXITS[ExitCode(death.code)].format(worker.number))
            return ExitCode(death.code)
        return self._restart(worker, death, now)

    def _restart(self, worker: WorkerProcess, death: Death, now: float) -> ExitCode | None:
        answer = worker.plan_restart(death, now)
        cause, life_s = exit_text(death.code), death.life_s
        self.deaths[cause] += 1
        if isinstance(answer, GiveUp):
            _LOG.error(
                f"worker {worker.number} exited ({cause}) after {life_s:.1f} s;"
                f" {answer.failed_starts} starts in a row failed: giving up, the service ends"
            )
            return ExitCode.GAVE_UP
        when = f"in {answer.delay_s:g} s" if answer.delay_s else "at once"
        failed_max = self._limits.restart.failed_starts_max
        nth = f", {answer.failed_starts} of {failed_max}" if answer.failed_starts else ""
        event = f"worker {worker.number} exited ({cause}) after {life_s:.1f} s"
        event += f"; next start {when}{nth}"
        if worker.isolate_s:
            event += f"; all its records run in an isolated process for {worker.isolate_s:g} s then"
        _LOG.warning(event, worker=worker.number, in_hand=death.in_hand)
        return None

    def _count_left_records(self, worker: WorkerProcess, death: Death) -> None:
        # A worker that never polled had nothing to finish, however it ended.
        left = death.code == ExitCode.DRAIN_TIMED_OUT or (
            death.polled and death.code != 0 and death.exit_request is not ExitRequest.QUIT
        )
        if left and self._draining:
            self.unfinished = True
            self.records_left += death.in_hand
        write = _LOG.warning if left else _LOG.info
        rest = ": its records in hand will be redelivered" if left else ""
        write(
            f"worker {worker.number} ended ({exit_text(death.code)}){rest}",
            in_hand=death.in_hand,
        )

    def _remove_ended(self) -> None:
        size = 0 if self._draining else self.size
        self.workers = [each for each in self.workers if each.alive or each.number < size]


_FATAL_EXITS = {
    ExitCode.CONFIG: "worker {} cannot run with this configuration: the service ends, fix it first",
    ExitCode.ALREADY_RUNNING: "worker {} was fenced by another process with its identity: the"
    " service ends; give each copy of the service its own `instance`",
}
