"""The worker's control of its isolated process. No call blocks."""

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
from kworker.instance.hand import Held
from kworker.instance.proc import rss_bytes
from kworker.instance.scoreboard import Scoreboard
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
_GREW_BYTES = 32 << 20  # a process that grew by less did not use up the memory
# Signals of a crash; any other may have been sent from outside.
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
    """The exit code of an isolated process that has ended, and its peak memory."""

    code: int  # negative: by that signal
    peak_bytes: int


class IsolatedProcess:
    """Controls one disposable process, which runs suspects.

    Owned by the poll thread of the worker. No call blocks. The process ends with the worker. Raises
    OSError if the process cannot be started.
    """

    def __init__(self, setup: Setup, hands: int, command: Sequence[str] = COMMAND) -> None:
        self.ready = False
        self.used = False  # a record was given to it
        self.ended_by_us = False
        self._timed_out = False  # it is ended, since records are over the time-out
        self._frames = Frames()
        self._unsent: deque[memoryview] = deque()
        self._exit_plan = ExitPlan()
        self._oom_kills = oom_kills()
        self._size_bytes = rss_bytes(os.getpid())  # of the fork, which its peak includes
        self._start(hands, command)
        self._send(setup)

    def _start(self, hands: int, command: Sequence[str]) -> None:
        child_in, self._to = os.pipe()
        self._from, child_out = os.pipe()
        board_fd = os.memfd_create("kworker-isolated", os.MFD_CLOEXEC)
        child_fds = (child_in, child_out, board_fd)
        try:
            self._slot = Scoreboard(1, hands, board_fd).slots[0]
            numbers = [str(number) for number in (os.getpid(), *child_fds)]
            self._process = subprocess.Popen([*command, *numbers], pass_fds=child_fds)
        except OSError:
            self.close()
            raise
        finally:
            for fd in child_fds:
                os.close(fd)
        for fd in (self._to, self._from):
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ending(self) -> bool:
        """True if the process is being ended and must not get another record."""
        return self.ended_by_us or self._timed_out

    @property
    def begun(self) -> bool:
        """True if this process has ever begun to run a handler on a record."""
        return self._slot.begun

    def in_hand(self) -> list[Held]:
        """Returns the records that the process runs, or was running when it died."""
        return self._slot.held()

    def give(self, run: RunRequest) -> None:
        """Queues a record for the process to run. Does not block: `receive` writes the request."""
        self.used = True
        self._send(run)

    def receive(self, *, to_the_end: bool) -> list[HandlersReady | LoadFailed | RunEnded]:
        """Writes waiting requests to the process, and returns messages from the process.

        Reads from the pipe once, or until the pipe is empty if `to_the_end`. Raises ProtocolError
        if the process sent invalid data.
        """
        self._write()
        messages: list[HandlersReady | LoadFailed | RunEnded] = []
        while data := self._read():
            messages += self._frames.add(data)
            if not to_the_end:
                break
        if any(isinstance(message, HandlersReady) for message in messages):
            self.ready = True
            self._size_bytes = max(self._size_bytes, rss_bytes(self.pid))
        return messages

    def end_stuck(self, now: float) -> None:
        """Begins to end the process, because records in it have exceeded their time-out.

        The signals that end the process are sent by `turn`.
        """
        self._timed_out = True
        self._exit_plan = for_stuck_process(now, _DUMP_S, _TERM_S, _ABORT_S)
        self.turn(now)

    def finish(self, now: float) -> None:
        """Closes the input of the process. Then the process closes its handlers and exits.

        If the process takes too long for that, `turn` kills it.
        """
        self.ended_by_us = True
        self._close_input()
        self._exit_plan = ExitPlan([(now + _FINISH_S, signal.SIGKILL)])

    def kill(self) -> None:
        """Kills the process at once. No record is blamed for this death."""
        self.ended_by_us = True
        if self._process.returncode is None:  # else another process may have its pid by now
            send_signal(self.pid, signal.SIGKILL)

    def turn(self, now: float) -> None:
        """Sends the signals that are due now, if the process is to end."""
        for signum in self._exit_plan.due(now):
            send_signal(self.pid, signum)

    def reaped(self) -> ExitedProcess | None:
        """Returns the exit code and peak memory of the process, or None while it runs.

        `receive` can still read the messages that the process sent before its end.
        """
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # reaped by a handler that waits for any child
            self._process.returncode = 0
            return ExitedProcess(-signal.SIGKILL, 0)
        if pid == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code  # or its destructor would wait for it
        return ExitedProcess(code, usage.ru_maxrss << 10)

    def end_of(self, exited: ExitedProcess) -> ProcessEnd:
        """Returns how the process ended, and what is to blame for that."""
        how = exit_text(exited.code)
        if self.ended_by_us:
            return ProcessEnd(how, Blame.NOBODY)
        if self._timed_out:
            return ProcessEnd("over the time-out", Blame.TIMEOUT)
        if exited.code >= 0 or -exited.code in _CRASHES or self._used_up_the_memory(exited):
            return ProcessEnd(how, Blame.HANDLER)
        return ProcessEnd(how, Blame.UNSURE)

    def close(self) -> None:
        """Closes the pipes. Called after the process was reaped and its last messages were read."""
        self._close_input()
        os.close(self._from)

    def _used_up_the_memory(self, exited: ExitedProcess) -> bool:
        """Returns True if the OOM killer probably killed this process because its memory grew."""
        grew = exited.peak_bytes - self._size_bytes > _GREW_BYTES
        return exited.code == -signal.SIGKILL and grew and oom_kills() > self._oom_kills

    def _send(self, message: PipeMessage) -> None:
        self._unsent.append(memoryview(frame(message)))

    def _write(self) -> None:
        while self._unsent and self._to >= 0:
            try:
                sent = os.write(self._to, self._unsent[0])
            except BlockingIOError:
                return
            except BrokenPipeError:  # it is dead, which `reaped` reports
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

    def _close_input(self) -> None:
        if self._to >= 0:
            os.close(self._to)
            self._to = -1
