"""Durations as people write them: `200ms`, `5s`, `10m`, `24h`."""

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: object) -> float:
    """Parses a duration such as `"200ms"`, `"5s"`, `"10m"`, `"24h"` or `"7d"` into seconds.

    Raises ValueError for any other text, and for fractions of a millisecond.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError('expected a duration such as "200ms", "5s", "10m" or "24h"')
    milliseconds = round(float(match[1]) * _DURATION_MS[match[2]], 6)
    if milliseconds % 1:
        raise ValueError("expected a duration of whole milliseconds")
    return milliseconds / 1000


def format_duration(seconds: float) -> str:
    """Formats a duration always in the same way: 60 s is `1m`, never `60s`.

    The names of delay topics contain durations in this format.
    """
    milliseconds = round(seconds * 1000)
    if not milliseconds:
        return "0s"
    unit = next(unit for unit in ("h", "m", "s", "ms") if milliseconds % _DURATION_MS[unit] == 0)
    return f"{milliseconds // _DURATION_MS[unit]}{unit}"
