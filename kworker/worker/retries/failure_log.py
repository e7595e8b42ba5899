"""The log lines of failed runs and dead letters, limited in number, and the last dead letters."""

from collections import deque
from dataclasses import dataclass

import structlog

from kworker.core.failure import Failure
from kworker.core.record import Record
from kworker.instance.scoreboard import RecentLetter
from kworker.log.running import trace_fields

_LOG = structlog.get_logger()
_RECENT = 5


@dataclass(frozen=True, slots=True)
class FailureLogPolicy:
    """Limits the log lines of one kind to `lines` in a window of `window_s` seconds.

    Further lines are withheld. When the next window begins, their number is logged.
    """

    lines: int = 20
    window_s: float = 10.0


class FailureLog:
    """Logs a WARNING per failed run and an ERROR per dead letter, up to a limit.

    Also keeps the last dead letters, for the status. Owned by the poll thread.
    """

    def __init__(self, policy: FailureLogPolicy = FailureLogPolicy()) -> None:
        self._runs = _Window(policy, "more runs failed than were logged")
        self._deaths = _Window(policy, "more records became dead letters than were logged")
        self.recent: deque[RecentLetter] = deque(maxlen=_RECENT)

    def retried(self, record: Record, failure: Failure, what_next: str, now: float) -> None:
        """Logs a failed run after which a record does not become a dead letter.

        `what_next` says what happens to the record next.
        """
        self._runs.roll(now)
        if self._runs.add():
            _LOG.warning(
                f"handler failed; {what_next}",
                record=_position(record),
                attempt=record.attempt,
                error=str(failure),
                at=failure.where,
                **trace_fields(record.raw.headers() or ()),
            )

    def dead(self, record: Record, failure: Failure, reason: str, now: float, now_ms: int) -> None:
        """Logs the failed run after which a record becomes a dead letter."""
        place = _position(record)
        self.recent.append(RecentLetter(place, reason, str(failure), now_ms))
        self._deaths.roll(now)
        if self._deaths.add():
            _LOG.error(
                f"the record becomes a dead letter: {reason}",
                record=place,
                attempt=record.attempt,
                error=str(failure),
                stack=failure.stack,
                **trace_fields(record.raw.headers() or ()),
            )


class _Window:
    """Counts the lines of one kind in a window of time."""

    def __init__(self, policy: FailureLogPolicy, withheld: str) -> None:
        self._policy = policy
        self._withheld_text = withheld
        self._ends = 0.0
        self._lines = 0
        self._withheld = 0

    def roll(self, now: float) -> None:
        """Begins a new window if the old window is over, and logs the number of lines withheld."""
        if now < self._ends:
            return
        if self._withheld:
            _LOG.warning(self._withheld_text, withheld=self._withheld)
        self._ends = now + self._policy.window_s
        self._lines = self._withheld = 0

    def add(self) -> bool:
        """Counts a line; returns True if it is to be written, False if it is withheld."""
        written = self._lines < self._policy.lines
        self._lines += written
        self._withheld += not written
        return written


def _position(record: Record) -> str:
    return "{}:{}:{}".format(*record.source.place)
