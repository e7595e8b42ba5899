"""Makes bytes and texts of unknown origin safe to show on a terminal."""

import json
from typing import Any

_CONTROLS = frozenset(map(chr, range(32))) - set("\n\r\t") | {"\x7f"}


def content(value: bytes | None, *, pretty: bool = False) -> str:
    """Returns text as it is, bytes that are not UTF-8 text in hex, and None as `null`."""
    if value is None:
        return "null"
    text = _text(value)
    if text is None:
        return f"hex {value.hex()}"
    return _pretty(text) if pretty else text


def _text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROLS & set(text) else text


def _pretty(text: str) -> str:
    """Returns JSON indented over several lines, and any other text unchanged.

    JSON is unchanged, too, if parsing would change a number or drop a repeated name in an object.
    """
    try:
        data = json.loads(text, parse_float=_exact, object_pairs_hook=_unrepeated)
        return json.dumps(data, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _exact(number: str) -> float:
    value = float(number)
    if repr(value) != number:
        raise ValueError(number)
    return value


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object in the JSON has the same name twice")
    return found


def printable(text: str) -> str:
    """Returns the text with control characters escaped, except newline and tab."""
    shown = (
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )
    return "".join(shown)
