"""Lines of the service's log: their level, and their text for a terminal or as JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kworker.cli.text import printable

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["text", "json", "terminal"]
_RANKS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
_CAUSE_LINES = 15
_CONSOLE = re.compile(r"\S+ \[(\w+) *\] ")  # as the console format begins


class LogLine(NamedTuple):
    """One line. `fields` is None unless kworker wrote it as JSON; `level` is "" if unknown."""

    text: str
    fields: Mapping[str, Any] | None
    level: str

    @classmethod
    def parse(cls, line: bytes) -> "LogLine":
        text = line.decode(errors="replace").rstrip("\r")
        if (fields := _fields(text)) is not None:
            return cls(text, fields, fields["level"])
        begins = _CONSOLE.match(text)
        return cls(text, None, begins[1] if begins else "")

    def has(self, level: Level) -> bool:
        """Returns True if the line has this level or a higher one."""
        return _RANKS.get(self.level, -1) >= _RANKS[level]


def _fields(text: str) -> dict[str, Any] | None:
    """Returns the fields of a line that kworker wrote as JSON; None for any other line."""
    if not text.startswith("{"):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    ours = all(isinstance(fields.get(name), str) for name in ("timestamp", "level", "event"))
    return fields if ours else None


def shown(line: LogLine, form: Form) -> str:
    """Returns the text to print: the line unchanged, as a JSON object, or for a terminal."""
    match form:
        case "text":
            return line.text
        case "json":
            return line.text if line.fields else json.dumps({"event": line.text})
        case "terminal":
            return _formatted(line.fields) if line.fields else printable(line.text)


def why_it_ended(lines: Sequence[str]) -> list[str]:
    """Returns the last lines of a failed start that tell its cause, as a terminal shows them.

    These are warnings, errors, and lines that are not log lines, such as those of a traceback. If
    there are none, returns the last lines of any kind.
    """
    parsed = [LogLine.parse(line.encode()) for line in lines]
    telling = [line for line in parsed if not line.level or line.has("warning")]
    return [shown(line, "terminal") for line in (telling or parsed)[-_CAUSE_LINES:]]


def _formatted(fields: Mapping[str, Any]) -> str:
    from kworker import log

    return log.console_line({k: _printable(v) for k, v in fields.items()}, colors=True)


def _printable(value: Any) -> Any:
    """Escapes the control characters in the texts of a value, also inside lists and objects."""
    match value:
        case str():
            return printable(value)
        case list():
            return [_printable(item) for item in value]
        case dict():
            return {printable(name): _printable(item) for name, item in value.items()}
    return value
