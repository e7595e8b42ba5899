"""Formats JSON log lines for a person at a terminal."""

from collections.abc import Mapping
from typing import Any

import structlog

_CAUSED = "\n\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


def console_line(fields: Mapping[str, Any], *, colors: bool) -> str:
    """Returns the fields of a JSON line in the console format; with a traceback, several lines."""
    event = {name: value for name, value in fields.items() if name != "exc_info"}
    if "stack" in event:
        event["stack"] = str(event["stack"])
    if "exception" in event:
        event["exception"] = _traceback(event["exception"])
    return str(structlog.dev.ConsoleRenderer(colors=colors)(None, "", event))


def _traceback(exceptions: Any) -> str:
    """Returns the exceptions of a JSON line as Python prints them: causes first."""
    try:
        first, *later = [(_one_traceback(each), each["is_cause"]) for each in exceptions[::-1]]
        text, is_cause = first
        for its_text, its_is_cause in later:
            text += _CAUSED if is_cause else _MEANWHILE
            text, is_cause = text + its_text, its_is_cause
        return text
    except (KeyError, TypeError, ValueError):  # written by another program
        return str(exceptions)


def _one_traceback(exception: Mapping[str, Any]) -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in exception["frames"]:
        lines.append('  File "{filename}", line {lineno}, in {name}'.format(**frame))
    lines.append(f"{exception['exc_type']}: {exception['exc_value']}")
    return "\n".join([*lines, *exception.get("exc_notes", ())])
