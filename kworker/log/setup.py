"""The configuration of the log, and the way of a line through it."""

import logging
import os
import sys
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

from kworker.config.model import LogSettings
from kworker.log.repeats import Repeats

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_FIRST = ("timestamp", "level", "event")
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
