"""Failed runs, told without drowning the log."""

from dataclasses import dataclass

import structlog

from kworker.core.outcome import Failed
from kworker.core.record import Record

_LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FailureLogPolicy:
    """So many lines in a window; the rest is counted and told with the next window."""

    lines: int = 20
    window_s: float = 10.0


class FailureLog:
    """Writes a WARNING a failed run, up to a limit. Owned by the poll thread."""

    def __init__(self, policy: FailureLogPolicy) -> None:
        self._policy = policy
        self._window_ends = 0.0
        self._lines = 0
        self._withheld = 0

    def tell(self, record: Record, failed: Failed, delay_s: float, now: float) -> None:
        if now >= self._window_ends:
            self._begin_window(now)
        if self._lines >= self._policy.lines:
            self._withheld += 1
            return
        self._lines += 1
        partition = record.partition
        _LOG.warning(
            f"handler failed; runs again in {delay_s:g} s",
            record=f"{partition.topic}/{partition.number}/{record.offset}",
            attempt=record.attempt,
            error=f"{type(failed.error).__name__}: {failed.error}",
            at=_where(failed.error),
        )

    def _begin_window(self, now: float) -> None:
        if self._withheld:
            _LOG.warning("more handlers failed than were logged", withheld=self._withheld)
        self._window_ends = now + self._policy.window_s
        self._lines = self._withheld = 0


def _where(error: BaseException) -> str | None:
    """The innermost line of the traceback."""
    trace = error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
