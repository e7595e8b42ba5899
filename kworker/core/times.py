"""Points in time as text for people: parsing and formatting."""

from dataclasses import dataclass
from datetime import UTC, datetime

from kworker.core.duration import parse_duration

EPOCH_MS_MIN = 10**11
"""A smaller whole number, which would be before 1973-03-03, is not accepted."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of record timestamps, in ms since 1970.

    `from_ms` is in the range, `to_ms` is not. If one is None, the range is open on that side.
    """

    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def empty(self) -> bool:
        return self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms

    def contains(self, timestamp_ms: int) -> bool:
        """Returns True if the range contains this timestamp.

        A record without a timestamp has -1, which is before every `from_ms`.
        """
        if self.from_ms is not None and timestamp_ms < self.from_ms:
            return False
        return self.to_ms is None or timestamp_ms < self.to_ms


def parse_time(text: str, now_ms: int) -> int:
    """Returns a time as milliseconds since 1970.

    The text is ISO 8601, or a time before `now_ms` such as `-2h`, or milliseconds since 1970.
    Raises ValueError for any other text.
    """
    if text.isascii() and text.isdigit():
        if int(text) < EPOCH_MS_MIN:
            raise ValueError(
                f'"{text}" is too small for epoch milliseconds; if it is in seconds, append 000'
            )
        return int(text)
    try:
        if text.startswith("-"):
            return now_ms - round(parse_duration(text[1:]) * 1000)
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            'expected a time in ISO 8601 (in UTC if it names no zone), "-2h" for two hours ago,'
            f' or epoch milliseconds, got "{text}"'
        ) from None
    return _epoch_ms(at if at.tzinfo else at.replace(tzinfo=UTC))


def _epoch_ms(at: datetime) -> int:
    # In whole numbers: a float of seconds may miss its millisecond.
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def iso(at_ms: int) -> str:
    """Formats milliseconds since 1970 as a time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a header may claim any number
        return str(at_ms)


def ago(at_ms: int, now_ms: int) -> str:
    """Formats the time from `at_ms` to `now_ms` in its largest unit: `3h`."""
    seconds = max(0, now_ms - at_ms) // 1000
    for unit, of in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= of:
            return f"{seconds // of}{unit}"
    return f"{seconds}s"
