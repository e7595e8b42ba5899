"""The child that a handler forks: a copy of the worker, which must not go on as one."""

import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

from kworker.instance.scoreboard import Slot

_PID_BYTES = 4
_RECORDED = (signal.SIGTERM, signal.SIGUSR2)  # by the worker's handlers, which a copy has, too


class ForkAware(Protocol):
    """A pool whose handlers fork."""

    def after_fork_in_child(self, end: Callable[[], NoReturn]) -> None: ...


class ForkGuard:
    """Ends a forked child where it comes back from its handler, before it takes another record.

    The child has one thread, the one that forked; what it writes to the scoreboard, it writes for
    nobody. One that ends by itself, as those of `multiprocessing` do, is left alone, and hears
    SIGTERM like any program. The children write their pids into a pipe as they end here, since a
    lock that the log needs may be held for ever in a copy.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._before = threading.local()  # `mask`, of a thread that forks just now
        self.fd, self._writes = os.pipe()  # tells of those that were ended
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writes, False)

    def install(self, pool: ForkAware) -> None:
        """From now on, for as long as this process lives."""
        os.register_at_fork(
            before=self._hold_signals,
            after_in_parent=self._let_signals_go,
            after_in_child=lambda: self._become_copy(pool),
        )

    def ended_children(self) -> list[int]:
        """The pids of children that were ended, since the last call."""
        try:
            data = os.read(self.fd, 1024 * _PID_BYTES)
        except BlockingIOError:
            return []
        pids = [data[at : at + _PID_BYTES] for at in range(0, len(data), _PID_BYTES)]
        return [int.from_bytes(pid, "little") for pid in pids]

    def end(self) -> NoReturn:
        """In the child, for the pool to call: nothing is flushed, for it is its parent's."""
        try:
            os.write(self._writes, os.getpid().to_bytes(_PID_BYTES, "little"))
        except OSError:
            pass  # nobody reads it any more
        finally:
            os._exit(1)

    def _become_copy(self, pool: ForkAware) -> None:
        self._slot.detach()
        pool.after_fork_in_child(self.end)
        signal.set_wakeup_fd(-1)
        for signum in _RECORDED:
            signal.signal(signum, signal.SIG_DFL)
        self._let_signals_go()

    def _hold_signals(self) -> None:
        """Else one that comes before the child's own handlers is the parent's, and is lost."""
        self._before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _RECORDED)

    def _let_signals_go(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before.mask)
