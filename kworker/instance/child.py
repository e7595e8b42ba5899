"""Child processes: forked for a Python function, forked and executed for a program."""

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

_PR_SET_PDEATHSIG = 1
_FDS_MAX = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


def fork(main: Callable[[], int], keep: Sequence[int] = ()) -> int:
    """Forks a child that runs `main` and exits with its result; returns the pid. Never blocks.

    The child keeps file descriptors 0 to 2 and those in `keep`. Its signals have default actions,
    but SIGUSR1 prints its stacks, and SIGINT, SIGHUP and SIGUSR2 are ignored. The kernel sends it
    SIGTERM when the supervisor's thread ends. Raises OSError if the system cannot create a process.
    """
    return _fork(lambda: _run_with_stack_dumps(main), keep)


def spawn(argv: Sequence[str], environment: Mapping[str, str], keep: Sequence[int] = ()) -> int:
    """Starts a child that executes `argv` in a session of its own; returns the pid.

    The program keeps file descriptors 0 to 2 and those in `keep`.
    """

    def execute() -> int:
        for fd in keep:
            os.set_inheritable(fd, True)
        # A terminal's Ctrl-C goes to every process of the group; this child ends after the workers.
        os.setsid()
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)
        os.execve(argv[0], list(argv), environment)

    return _fork(execute, keep)


def exit_text(code: int) -> str:
    """Describes the end of a process for a person: `SIGSEGV`, or `exit code 3`."""
    if code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"


def reap() -> list[tuple[int, int]]:
    """Reaps all ended children; returns the pid and exit code of each. -N means signal N.

    Reaps also orphans, which become children of this process if it is pid 1.
    """
    reaped: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return reaped
        if pid == 0:
            return reaped
        reaped.append((pid, os.waitstatus_to_exitcode(status)))


def send_signal(pid: int, signum: int) -> None:
    """Sends a signal to a child that is not reaped yet, so that its pid cannot be another's."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass


def kill_group(pid: int) -> None:
    """Kills a child that leads a session, with all processes of its group."""
    send_signal(-pid, signal.SIGKILL)
    send_signal(pid, signal.SIGKILL)  # in case it has not called setsid yet


def _fork(main: Callable[[], int], keep: Sequence[int]) -> int:
    _flush()
    parent = os.getpid()
    # A signal between the fork and the child's own handlers would be recorded in the child's copy
    # of the supervisor's list, and be lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(main, parent, keep)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _run_child(main: Callable[[], int], parent: int, keep: Sequence[int]) -> None:
    code = 1
    try:
        _reset_signals()
        _close_all_but(keep)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        # The parent may have died before the line above: then no signal would follow.
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            code = main()
    except BaseException:  # noqa: BLE001 - the top of a process
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _run_with_stack_dumps(main: Callable[[], int]) -> int:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    return main()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the reader is gone, or the disk is full
            pass


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    # Not SIG_IGN, which programs started by a handler would inherit.
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, _ignore)
    # But these with SIG_IGN: with a handler, a background write to a terminal would never end.
    for signum in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(signum, signal.SIG_IGN)


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    pass


def _close_all_but(keep: Sequence[int]) -> None:
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, _FDS_MAX)
