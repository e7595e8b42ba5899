"""Plans the signals that end a process, and their times."""

from collections import deque
from collections.abc import Iterable
from signal import SIGABRT, SIGKILL, SIGTERM, SIGUSR1


class ExitPlan:
    """The signals that are to end a process, each with the time at which it is sent."""

    def __init__(self, steps: Iterable[tuple[float, int]] = ()) -> None:
        """`steps` are pairs of monotonic seconds and a signal, in order of time."""
        self._steps = deque(steps)

    def due(self, now: float) -> list[int]:
        """Removes and returns the signals that are due."""
        signals: list[int] = []
        while self._steps and now >= self._steps[0][0]:
            signals.append(self._steps.popleft()[1])
        return signals


def for_stuck_process(now: float, dump_s: float, term_s: float, abort_s: float) -> ExitPlan:
    """Returns a plan that ends a process by SIGUSR1, SIGTERM, SIGABRT and SIGKILL.

    SIGUSR1 prints its stacks at once. The three durations are the waits between the signals. While
    a handler holds the interpreter's lock, SIGTERM has no effect.
    """
    term_at = now + dump_s
    abort_at = term_at + term_s
    kill_at = abort_at + abort_s
    return ExitPlan([(now, SIGUSR1), (term_at, SIGTERM), (abort_at, SIGABRT), (kill_at, SIGKILL)])
