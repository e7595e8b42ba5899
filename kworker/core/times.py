"""Points in time as text for people: parsing and formatting."""

from datetime import UTC, datetime

from kworker.core.duration import parse_duration

EPOCH_MS_MIN = 10**11
"""A smaller whole number, which would be before 1973-03-03, is not accepted."""


def parse_time(text: str, now_ms: int) -> int:
    """Returns a time as milliseconds since 1970. Raises ValueError for any other text.

    The text is ISO 8601, or a time before `now_ms` such as `-2h`, or milliseconds since 1970.
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
