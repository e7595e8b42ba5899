"""Log lines are events with fields: readable on a terminal, JSON everywhere else."""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

from kworker.config.model import LogSettings

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_FIRST = ("timestamp", "level", "event")
_NUMBERS = re.compile(r"\d+")
_KINDS_MAX = 500
_CAUSED = "\n\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
_identity: dict[str, Any] = {}


def configure(log: LogSettings) -> None:
    """Configures logging. Called once in a process, and at each reload; forks inherit it."""
    level = _LEVELS[log.level]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _identify,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(log),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_Stderr,
        cache_logger_on_first_use=False,  # because a reload changes the level of loggers in use
    )
    forward = _Forward()
    forward.addFilter(Repeats("librdkafka"))
    logging.basicConfig(handlers=[forward], level=max(level, logging.INFO), force=True)


def identify(**fields: Any) -> None:
    """Sets the fields that all further log lines of this process have, in all threads."""
    _identity.clear()
    _identity.update(fields)


class _Stderr:
    """Writes each line with one call, so that the lines of several processes never mix."""

    def __init__(self, *_args: object) -> None:
        pass

    def msg(self, line: str) -> None:
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except OSError:  # a full disk or a lost reader must not stop the service
            pass

    debug = info = warning = error = critical = exception = msg


class Repeats(logging.Filter):
    """Drops a line of one logger if the same line has passed less than `every_s` seconds ago.

    Lines that differ only in numbers are the same. The next line that passes gets the number of
    dropped ones. While no broker answers, each Kafka client writes twenty lines a second.
    """

    def __init__(
        self, name: str, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._name = name
        self._every_s = every_s
        self._clock = clock
        # By kind of line: the time when it may pass again, and the number withheld until then.
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != self._name:
            return True
        now, kind = self._clock(), _NUMBERS.sub("#", record.getMessage())
        again_at, withheld = self._seen.get(kind, (0.0, 0))
        if now < again_at:
            self._seen[kind] = again_at, withheld + 1
            return False
        if len(self._seen) >= _KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = now + self._every_s, 0
        record.withheld = withheld
        return True


class _Forward(logging.Handler):
    """Passes the log lines of Python's module `logging` on to structlog.

    Libraries and the user's handlers write their lines with that module.
    """

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        if withheld := getattr(record, "withheld", 0):
            fields["withheld"] = withheld
        level = max(record.levelno, logging.DEBUG)
        structlog.get_logger().log(level, record.getMessage(), **fields)


def _identify(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {**_identity, "pid": os.getpid(), **event}


def _renderers(log: LogSettings) -> list[structlog.typing.Processor]:
    # Either way without the frames' local variables, which hold records and secrets.
    if log.format == "console" or (log.format == "auto" and sys.stderr.isatty()):
        plain = structlog.dev.plain_traceback
        return [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
        ]
    return [
        structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        ),
        structlog.processors.JSONRenderer(serializer=_json),
    ]


def _json(event: EventDict, **_options: Any) -> str:
    first = {name: event.pop(name) for name in _FIRST if name in event}
    return orjson.dumps({**first, **event}, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


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
