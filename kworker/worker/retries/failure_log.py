"""Failed runs, told without drowning the log."""

from dataclasses import dataclass

import structlog

from kworker.core.failure import Failure
from kworker.core.record import Record

_LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FailureLogPolicy:
    """So many lines of a kind in a window; the rest is counted and told with the next window."""

    lines: int = 20
    window_s: float = 10.0


class FailureLog:
    """A WARNING a failed run, an ERROR a dead letter, up to a limit. Owned by the poll thread."""

    def __init__(self, policy: FailureLogPolicy = FailureLogPolicy()) -> None:
        self._runs = _Window(policy, "more runs failed than were logged")
        self._deaths = _Window(policy, "more records became dead letters than were logged")

    def again(self, record: Record, failure: Failure, what_next: str, now: float) -> None:
        """A run failed, and it is not the last."""
        if self._runs.has_room(now):
            _LOG.warning(
                f"handler failed; {what_next}",
                record=_place(record),
                attempt=record.attempt,
                error=str(failure),
                at=failure.where,
            )

    def dead(self, record: Record, failure: Failure, reason: str, now: float) -> None:
        """There will be no other run."""
        if self._deaths.has_room(now):
            _LOG.error(
                f"dead letter: {reason}",
                record=_place(record),
                attempt=record.attempt,
                error=str(failure),
                stack=failure.stack,
            )


class _Window:
    """Counts the lines of one kind."""

    def __init__(self, policy: FailureLogPolicy, withheld: str) -> None:
        self._policy = policy
        self._text = withheld
        self._ends = 0.0
        self._lines = 0
        self._withheld = 0

    def has_room(self, now: float) -> bool:
        """Whether one more line may be written; counts it."""
        if now >= self._ends:
            if self._withheld:
                _LOG.warning(self._text, withheld=self._withheld)
            self._ends = now + self._policy.window_s
            self._lines = self._withheld = 0
        if self._lines >= self._policy.lines:
            self._withheld += 1
            return False
        self._lines += 1
        return True


def _place(record: Record) -> str:
    source = record.source
    return f"{source.topic}/{source.partition}/{source.offset}"
