"""The end of children that handlers fork: such a copy of the worker must run no record."""

import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

from kworker.instance.scoreboard import Slot

_PID_BYTES = 4
_RECORDED = (signal.SIGTERM, signal.SIGUSR2)  # by the worker, and so by a copy of it


class ForkAware(Protocol):
    """A pool whose handlers may fork."""

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None: ...


class ForkGuard:
    """Ends the child processes that handlers fork: each one when it returns from the handler.

    The child is a copy of the worker, and must not run another record. It has only the thread that
    forked, and no longer writes to the scoreboard. A child that exits inside the handler, as those
    of `multiprocessing` do, is left alone, and SIGTERM ends it as it ends any program. A child that
    is ended here writes its pid into a pipe. It does not log, because a lock that logging needs may
    stay locked in a copy.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._before = threading.local()  # `mask`: the signal mask before this thread's fork
        self.fd, self._writes = os.pipe()  # pids of children that were ended
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writes, False)

    def install(self, pool: ForkAware) -> None:
        """Registers the hooks that run when this process forks; they cannot be removed."""
        os.register_at_fork(
            before=self._hold_signals,
            after_in_parent=self._release_signals,
            after_in_child=lambda: self._after_in_child(pool),
        )

    def ended_children(self) -> list[int]:
        """Returns the pids of the children that this guard ended since the last call."""
        try:
            data = os.read(self.fd, 1024 * _PID_BYTES)
        except BlockingIOError:
            return []
        pids = [data[at : at + _PID_BYTES] for at in range(0, len(data), _PID_BYTES)]
        return [int.from_bytes(pid, "little") for pid in pids]

    def end(self) -> NoReturn:
        """Exits the forked child without flushing its buffers: the parent writes the same data."""
        try:
            os.write(self._writes, os.getpid().to_bytes(_PID_BYTES, "little"))
        except OSError:
            pass  # the parent has ended
        finally:
            os._exit(1)

    def _after_in_child(self, pool: ForkAware) -> None:
        self._slot.detach()
        pool.after_fork_in_child(self.end)
        signal.set_wakeup_fd(-1)
        for signum in _RECORDED:
            signal.signal(signum, signal.SIG_DFL)
        self._release_signals()

    def _hold_signals(self) -> None:
        """Blocks signals until the child has reset its signal handlers, so that none is lost."""
        self._before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _RECORDED)

    def _release_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before.mask)
