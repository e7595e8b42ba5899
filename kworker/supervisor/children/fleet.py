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
from kworker.instance.child import ended, fork
from kworker.instance.crash_journal import CrashJournal
from kworker.instance.host_lock import HostLock
from kworker.instance.proc import stand_before
from kworker.instance.scoreboard import Field, Scoreboard, Slot, hands_of
from kworker.instance.state_folder import StateFolder
from kworker.supervisor.children.leftovers import Leftovers
from kworker.supervisor.children.worker_process import Asked, Death, WorkerProcess
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
        body: ChildMain,
        limits: Limits,
        host_lock: HostLock,
    ) -> None:
        self.size = config.workers.processes
        self.members: list[WorkerProcess] = []
        self.totals: Counter[str] = Counter()  # of those that are gone
        self.draining = False
        self.unfinished = False  # something in hand had to be left to be delivered again
        self.left = 0  # records, as far as those that left them knew
        self._folder = folder
        self._journal = CrashJournal(folder.suspects)
        self._body = body
        self._limits = limits
        self.leftovers = Leftovers(limits.left_grace_s, limits.left_term_s)
        self._host_lock = host_lock
        # Its other end is ours alone: when we are gone, however, the workers read an end of file.
        self._lifeline, self._our_end = os.pipe()
        self.use(config)

    def use(self, config: Config) -> None:
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
    def room(self) -> int:
        """The largest size that needs no restart."""
        return len(self._board.slots)

    @property
    def joined(self) -> bool:
        """Whether every worker has had its assignment, be it an empty one."""
        return len(self.members) == self.size and all(
            member.alive and member.phase >= Phase.RUNNING for member in self.members
        )

    def resize(self, size: int, now: float) -> None:
        """More or fewer workers: the highest numbers go, for ever."""
        self.size = size
        have = {member.number for member in self.members}
        for number in range(size):
            if number not in have:
                slot = self._board.slots[number]
                limits = self._limits
                self.members.append(WorkerProcess(number, slot, limits.restart, limits.wear))
        for member in self.members:
            if member.number >= size:
                self._drain(member, now, leave=True)
        self.members = [m for m in self.members if m.alive or m.number < size]

    def turn(self, now: float) -> None:
        """Starts those whose time has come, kills those whose time is over."""
        self.leftovers.turn(now)
        for member in self.members:
            if signal.SIGKILL in member.press(now):
                _log.warning(f"worker {member.number} did not end in time: killed", pid=member.pid)
            elif member.start_at is not None and now >= member.start_at and not self.draining:
                self._start(member, now)

    def replace(self, member: WorkerProcess, now: float) -> None:
        """This worker drains; the next life in its place begins when it is gone."""
        member.start_afresh(now)
        self._drain(member, now, leave=False)

    def drain(self, now: float, *, leave: bool) -> None:
        """All finish what is in hand and end; none starts again."""
        self.draining = True
        for member in self.members:
            self._drain(member, now, leave=leave)
        self._forget_the_dead()

    def quit(self, now: float) -> None:
        """All end at once."""
        self.draining = True
        for member in self.members:
            self.unfinished = self.unfinished or bool(member.slot.words[Field.IN_HAND])
            member.quit(now + self._limits.quit_s)
        self._forget_the_dead()

    @property
    def living(self) -> list[WorkerProcess]:
        """Those that have a process."""
        return [member for member in self.members if member.alive]

    def accept_dead(self) -> int:
        """Every worker lets die what its breaker holds; how many workers there are."""
        alive = self.living
        for member in alive:
            member.slot.words[Field.ACCEPT] = 1
        return len(alive)

    def died(self, pid: int, code: int, now: float) -> ExitCode | None:
        """A child was reaped: None, or the code with which the whole service must end."""
        for member in self.members:
            if member.pid == pid:
                self.totals.update(member.slot.counters())
                death = member.dies(code, now)
                self.leftovers.of(member.number, pid, now)
                # Before the next life, which looks there at its first records.
                self._accuse(member, death)
                return self._mourn(member, death, now)
        return None

    def in_hand(self) -> int:
        """Records taken and not settled, in all workers."""
        return self.sum(Field.IN_HAND)

    def sum(self, field: Field) -> int:
        return sum(member.slot.words[field] for member in self.members)

    def counters(self) -> Counter[str]:
        """Every counter since the service started, the dead included."""
        total = self.totals.copy()
        for member in self.members:
            total.update(member.slot.counters())
        return total

    def _start(self, member: WorkerProcess, now: float) -> None:
        slot = self._board.slots[member.number]
        slot.begin(0, time.monotonic_ns())
        member.slot = slot
        config = self._config
        try:
            pid = fork(
                lambda: self._live(config, slot), keep=(self._lifeline, *self._host_lock.fds)
            )
        except OSError as error:
            member.start_at = now + _FORK_AGAIN_S
            _log.warning(
                f"worker {member.number} cannot be forked ({error.strerror});"
                f" next try in {_FORK_AGAIN_S:g} s"
            )
            return
        slot.words[Field.PID] = pid
        member.begins(pid, now)
        _log.info(f"worker {member.number} started", worker=member.number, worker_pid=pid)

    def _live(self, config: Config, slot: Slot) -> int:
        """In the child."""
        os.setpgid(0, 0)  # with all that handlers start
        setproctitle(f"kworker: worker {slot.number} [{config.name}] starting")
        stand_before(_OOM_MORE)
        log.identify(worker=slot.number)
        self._folder.join_workers()
        self._host_lock.share()
        return self._body(config, slot, self._lifeline)

    def _drain(self, member: WorkerProcess, now: float, *, leave: bool) -> None:
        limit = self._config.workers.drain_timeout + self._limits.drain_margin_s
        member.drain(now + limit, leave=leave)

    def _accuse(self, member: WorkerProcess, death: Death) -> None:
        if not death.suspects:
            return
        places = [(held.topic, held.partition, held.offset) for held in death.suspects]
        how, most = ended(death.code), self._hands * self.room
        try:
            self._journal.accuse(places, death.why, how, time.time(), most)
        except OSError as error:
            problem = f"cannot be written to {self._folder.suspects} ({error.strerror})"
            _log.error(f"suspects of worker {member.number} {problem}: they run like any other")
            return
        _log.warning(
            f"worker {member.number} had {len(places)} records in hand: they are suspects and"
            " run in a process of their own",
            why=death.why,
            records=["/".join(map(str, place)) for place in places[:_NAMED_MOST]],
        )

    def _mourn(self, member: WorkerProcess, death: Death, now: float) -> ExitCode | None:
        wanted = death.asked in (Asked.DRAIN, Asked.QUIT)
        if self.draining or member.number >= self.size:
            self._count_what_it_left(member, death)
            self._forget_the_dead()
            return None
        if wanted:
            member.start_afresh(now)
            tell = _log.warning if death.code else _log.info
            how = f"worker {member.number} ended ({ended(death.code)}); it starts again"
            tell(how, in_hand=death.in_hand)
            return None
        if death.code in (ExitCode.CONFIG, ExitCode.ALREADY_RUNNING):
            _log.error(_LAST_WORDS[ExitCode(death.code)].format(member.number))
            return ExitCode(death.code)
        return self._restart(member, death, now)

    def _restart(self, member: WorkerProcess, death: Death, now: float) -> ExitCode | None:
        answer = member.judge(death, now)
        how = f"worker {member.number} exited ({ended(death.code)}) after {death.life_s:.1f} s"
        if isinstance(answer, GiveUp):
            _log.error(f"{how}; {answer.failed_starts} starts in a row failed: giving up")
            return ExitCode.GAVE_UP
        when = f"in {answer.delay_s:g} s" if answer.delay_s else "at once"
        most = self._limits.restart.failed_starts_max
        nth = f", {answer.failed_starts} of {most}" if answer.failed_starts else ""
        _log.warning(f"{how}; next start {when}{nth}", worker=member.number, in_hand=death.in_hand)
        return None

    def _count_what_it_left(self, member: WorkerProcess, death: Death) -> None:
        # One that never polled had nothing to finish, however it ended.
        left = death.code == ExitCode.DRAIN_TIMED_OUT or (
            death.polled and death.code != 0 and death.asked is not Asked.QUIT
        )
        if left and self.draining:
            self.unfinished = True
            self.left += death.in_hand
        tell = _log.warning if left else _log.info
        rest = ": what was in hand is delivered again" if left else ""
        tell(f"worker {member.number} ended ({ended(death.code)}){rest}", in_hand=death.in_hand)

    def _forget_the_dead(self) -> None:
        if self.draining:
            self.members = [member for member in self.members if member.alive]
        else:
            self.members = [m for m in self.members if m.alive or m.number < self.size]


_LAST_WORDS = {
    ExitCode.CONFIG: "worker {} cannot run with this configuration: the service ends, fix it first",
    ExitCode.ALREADY_RUNNING: "worker {} was fenced by a twin of its identity: the service ends;"
    " give each its own `instance`",
}
