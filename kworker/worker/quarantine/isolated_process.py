"""A cell as its worker sees it: started, talked to and ended without ever waiting for it."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kworker.core.suspects import Blame, ProcessEnd
from kworker.host import oom_kills
from kworker.instance.child import exit_text, send_signal
from kworker.instance.exit_plan import ExitPlan, for_stuck_process
from kworker.instance.proc import rss_bytes
from kworker.instance.scoreboard import Held, Scoreboard
from kworker.worker.quarantine.pipe import (
    Frames,
    HandlersReady,
    LoadFailed,
    PipeMessage,
    RunEnded,
    RunRequest,
    Setup,
    frame,
)

COMMAND = (sys.executable, "-m", "kworker.worker.quarantine.child")
_READ_BYTES = 1 << 18  # a turn: the poll thread has more to do
_DUMP_S, _TERM_S, _ABORT_S = 0.5, 1.0, 2.0
_FINISH_S = 5.0  # for close() of the handlers
_GREW_BYTES = 32 << 20  # by less, it was not this process that used up the memory
# What a program does to itself; other signals may come from anybody.
_CRASHES = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
)


@dataclass(frozen=True, slots=True)
class ExitedProcess:
    """The process has ended and is reaped."""

    code: int  # negative: by that signal
    peak_bytes: int


class IsolatedProcess:
    """One life of a cell. Owned by the poll thread, with whose end it ends, too.

    Raises OSError when the machine has no room for it.
    """

    def __init__(self, orders: Setup, hands: int, command: Sequence[str] = COMMAND) -> None:
        self.ready = False
        self.used = False  # it was given a record
        self.ended_by_us = False
        self._stuck_on: list[Held] | None = None  # it is being ended for these
        self._frames = Frames()
        self._unsent: deque[memoryview] = deque()
        self._ending = ExitPlan()
        self._oom_kills = oom_kills()
        self._size_bytes = rss_bytes(os.getpid())  # which its peak counts as its own
        self._start(hands, command)
        self._say(orders)

    def _start(self, hands: int, command: Sequence[str]) -> None:
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        board_fd = os.memfd_create("kworker-cell", os.MFD_CLOEXEC)
        theirs = (theirs_in, theirs_out, board_fd)
        try:
            self._slot = Scoreboard(1, hands, board_fd).slots[0]
            numbers = [str(number) for number in (os.getpid(), *theirs)]
            self._process = subprocess.Popen([*command, *numbers], pass_fds=theirs)
        except OSError:
            self._close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        for fd in (self._to, self._from):
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ending(self) -> bool:
        """Nothing more may be given to it."""
        return self.ended_by_us or self._stuck_on is not None

    @property
    def begun(self) -> bool:
        """Whether a handler ever began in it."""
        return self._slot.begun

    def in_hand(self) -> list[Held]:
        """The records in its handlers' hands, also when it is dead."""
        return self._slot.held()

    def blamed(self) -> list[Held]:
        """Of the records in hand those that its end is laid to: at a time-out, that overran."""
        held = self.in_hand()
        return held if self._stuck_on is None else [h for h in held if h in self._stuck_on]

    def give(self, run: RunRequest) -> None:
        """A record to run; it is written as the pipe takes it."""
        self.used = True
        self._say(run)

    def hear(self, *, to_the_end: bool) -> list[HandlersReady | LoadFailed | RunEnded]:
        """Writes, and reads what is there; all of it only `to_the_end`. Raises Garbled."""
        self._write()
        words: list[HandlersReady | LoadFailed | RunEnded] = []
        while data := self._read():
            words += self._frames.add(data)
            if not to_the_end:
                break
        if any(isinstance(word, HandlersReady) for word in words):
            self.ready = True
            self._size_bytes = max(self._size_bytes, rss_bytes(self.pid))
        return words

    def end_stuck(self, now: float, overdue: list[Held]) -> None:
        """Dumps its stacks and ends it, in steps that `turn` takes."""
        self._stuck_on = overdue
        self._ending = for_stuck_process(now, _DUMP_S, _TERM_S, _ABORT_S)
        self.turn(now)

    def finish(self, now: float) -> None:
        """It has done its work: closes its handlers and ends."""
        self.ended_by_us = True
        self._hang_up()
        self._ending = ExitPlan([(now + _FINISH_S, signal.SIGKILL)])

    def kill(self) -> None:
        """At once; this is no death that counts."""
        self.ended_by_us = True
        if self._process.returncode is None:  # or the number may be another's by now
            send_signal(self.pid, signal.SIGKILL)

    def turn(self, now: float) -> None:
        for signum in self._ending.due(now):
            send_signal(self.pid, signum)

    def reaped(self) -> ExitedProcess | None:
        """Once it has ended; it is not waited for. What it last said can still be heard."""
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # a handler that waits for any child had it
            self._process.returncode = 0
            return ExitedProcess(-signal.SIGKILL, 0)
        if pid == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code  # or its destructor would ask for it
        return ExitedProcess(code, usage.ru_maxrss << 10)

    def end_of(self, gone: ExitedProcess) -> ProcessEnd:
        """Whose doing that was."""
        how = exit_text(gone.code)
        if self.ended_by_us:
            return ProcessEnd(how, Blame.NOBODY)
        if self._stuck_on is not None:
            return ProcessEnd("over the time-out", Blame.TIMEOUT)
        if gone.code >= 0 or -gone.code in _CRASHES or self._used_up_the_memory(gone):
            return ProcessEnd(how, Blame.HANDLER)
        return ProcessEnd(how, Blame.UNSURE)

    def close(self) -> None:
        """After it was reaped and heard to the end."""
        self._close()

    def _used_up_the_memory(self, gone: ExitedProcess) -> bool:
        """The system killed for want of memory meanwhile, and this one had taken much of it."""
        grew = gone.peak_bytes - self._size_bytes > _GREW_BYTES
        return gone.code == -signal.SIGKILL and grew and oom_kills() > self._oom_kills

    def _say(self, word: PipeMessage) -> None:
        self._unsent.append(memoryview(frame(word)))

    def _write(self) -> None:
        while self._unsent and self._to >= 0:
            try:
                sent = os.write(self._to, self._unsent[0])
            except BlockingIOError:
                return
            except BrokenPipeError:  # it is dead, which `reaped` tells
                self._unsent.clear()
                return
            rest = self._unsent.popleft()[sent:]
            if rest:
                self._unsent.appendleft(rest)

    def _read(self) -> bytes:
        try:
            return os.read(self._from, _READ_BYTES)
        except BlockingIOError:
            return b""

    def _hang_up(self) -> None:
        if self._to >= 0:
            os.close(self._to)
            self._to = -1

    def _close(self) -> None:
        self._hang_up()
        os.close(self._from)
