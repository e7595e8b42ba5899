"""The types of values in `kworker.toml`: how the file spells them, and what they become."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from kworker.core.duration import format_duration, parse_duration

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)")
_SIZE_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE_END = 1 << 63


def parse_size(text: object) -> int:
    """Parses a size such as `"64MiB"` into bytes. Raises ValueError for any other text."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    size = float(match[1]) * _SIZE_BYTES[match[2]] if match else math.inf
    if size < _SIZE_END:
        return int(size)
    raise ValueError('expected a size such as "16KiB", "64MiB" or "2GiB"')


def format_size(size: int) -> str:
    """Formats bytes in the largest unit that needs no fraction."""
    unit = next(unit for unit in reversed(_SIZE_BYTES) if size % _SIZE_BYTES[unit] == 0)
    return f"{size // _SIZE_BYTES[unit]}{unit}" if size else "0B"


def _whole(at_least: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= at_least:
            return value
        raise ValueError(f"expected a whole number of at least {at_least}")

    return check


def _positive_duration(text: object) -> float:
    seconds = parse_duration(text)
    if seconds > 0:
        return seconds
    raise ValueError("expected a duration of at least 1ms")


def _duration_or_off(text: object) -> float | None:
    return None if text in ("", None) else _positive_duration(text)


def _property(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    raise ValueError("expected a string, a number, true or false")


def _as_text(value: object) -> object:
    """Turns numbers and booleans into strings, because Spark's properties are strings."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


_DURATION = r"\d+(\.\d+)?(ms|s|m|h|d)"
_DURATION_JSON = {"type": "string", "pattern": f"^{_DURATION}$"}
_SIZE_JSON = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(B|KiB|MiB|GiB|TiB)$"}
_SPELL_DURATION = PlainSerializer(format_duration, when_used="json")

Duration = Annotated[
    float, BeforeValidator(parse_duration), _SPELL_DURATION, WithJsonSchema(_DURATION_JSON)
]
"""Seconds."""
PositiveDuration = Annotated[
    float, BeforeValidator(_positive_duration), _SPELL_DURATION, WithJsonSchema(_DURATION_JSON)
]
"""Seconds, more than 0."""
DurationOrOff = Annotated[
    float | None,
    BeforeValidator(_duration_or_off),
    PlainSerializer(lambda value: format_duration(value) if value else "", when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^({_DURATION})?$"}),
]
"""Seconds; `""` in the file is None."""
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema(_SIZE_JSON),
]
"""Bytes."""
Positive = Annotated[
    int, BeforeValidator(_whole(1)), WithJsonSchema({"type": "integer", "minimum": 1})
]
NotNegative = Annotated[
    int, BeforeValidator(_whole(0)), WithJsonSchema({"type": "integer", "minimum": 0})
]
FolderPath = Annotated[Path, Field(strict=False)]
LogLevel = Literal["debug", "info", "warning", "error"]
Property = Annotated[str | int | float | bool, BeforeValidator(_property)]
SparkProperty = Annotated[str, BeforeValidator(_as_text)]
