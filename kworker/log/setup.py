"""Configures structlog and `logging`: all lines go to standard error, in one format."""

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

from kworker.config.model import LogSettings
from kworker.log import printed, running
from kworker.log.levels import LevelsByLogger
from kworker.log.repeats import Repeats

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_FIRST = ("timestamp", "level", "event")
# And "self", which no method takes as the name of a field.
_OF_EVERY_LINE = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "self"}
_TRACING = "opentelemetry"
_identity: dict[str, Any] = {}


def configure(log: LogSettings) -> None:
    """Configures logging. Called once in a process, and at each reload; forks inherit it."""
    levels = _levels(log)
    structlog.configure(
        processors=_processors(log, levels),
        wrapper_class=structlog.make_filtering_bound_logger(levels.lowest),
        logger_factory=_Stderr,
        cache_logger_on_first_use=False,  # because a reload changes the level of loggers in use
    )
    logging.setLogRecordFactory(running.NamingLogRecord)
    forward = _Forward(_own_loggers(log))
    forward.addFilter(Repeats("librdkafka"))
    forward.addFilter(Repeats(_TRACING))
    level = max(_LEVELS[log.level], logging.INFO)
    logging.basicConfig(handlers=[forward], level=level, force=True)
    levels.apply_to_logging()


def identify(**fields: Any) -> None:
    """Sets the fields that all further log lines of this process have, in all threads."""
    _identity.clear()
    _identity.update(fields)


def capture_prints(log: LogSettings) -> None:
    """If the log is JSON, turns what this process prints into log lines.

    Called once, after a fork.
    """
    if not _is_for_people(log):
        printed.capture(_own_loggers(log)("print"))


def _own_loggers(log: LogSettings) -> Callable[[str], Any]:
    """Returns a function that makes a logger for a name, whatever structlog's configuration is.

    The user's code may have configured structlog to print, or to pass its lines on to `logging`.
    With that configuration, a line would come back here, without end.
    """
    levels = _levels(log)
    return lambda name: structlog.wrap_logger(
        _Stderr(name),
        processors=_processors(log, levels),
        wrapper_class=structlog.make_filtering_bound_logger(levels.lowest),
    )


def _levels(log: LogSettings) -> LevelsByLogger:
    return LevelsByLogger(_LEVELS[log.level], {n: _LEVELS[each] for n, each in log.levels.items()})


def _processors(log: LogSettings, levels: LevelsByLogger) -> list[structlog.typing.Processor]:
    return [
        levels.drop_low,
        structlog.contextvars.merge_contextvars,
        _identify,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *_renderers(log),
    ]


class _Stderr:
    """Writes each line with one call, so that the lines of several processes never mix."""

    def __init__(self, name: object = "", *_more: object) -> None:
        self.name = name if isinstance(name, str) else ""

    def msg(self, line: str) -> None:
        stream = printed.real_stderr()
        try:
            stream.write(line + "\n")
            stream.flush()
        except OSError:  # a full disk or a lost reader must not stop the service
            pass

    debug = info = warning = error = critical = exception = msg


class _Forward(logging.Handler):
    """Passes the log lines of Python's module `logging` on to structlog.

    Libraries and the user's handlers write their lines with that module. If a line cannot be
    formatted, `logging` reports it on standard error. Nothing is raised, since a log line must not
    fail the record.
    """

    def __init__(self, make_logger: Callable[[str], Any]) -> None:
        super().__init__()
        self._make_logger = make_logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._pass_on(record)
        except Exception:  # noqa: BLE001 - whatever the user's objects raise when they become text
            self.handleError(record)

    def _pass_on(self, record: logging.LogRecord) -> None:
        fields = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_LINE}
        fields = {**fields.pop("kworker", {}), **fields}
        if record.exc_info and record.exc_info[0]:
            fields["exc_info"] = record.exc_info
        if record.stack_info:
            fields["stack"] = record.stack_info
        # That spans cannot be sent is no error of the service, which goes on.
        most = logging.WARNING if record.name.partition(".")[0] == _TRACING else logging.CRITICAL
        # Levels between these have no name in structlog.
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), most)
        self._make_logger(record.name).bind(**fields).log(level, record.getMessage())


def _identify(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {**_identity, "pid": os.getpid(), **running.fields(), **event}


def _is_for_people(log: LogSettings) -> bool:
    is_terminal = log.format == "auto" and printed.real_stderr().isatty()
    return log.format == "console" or is_terminal


def _renderers(log: LogSettings) -> list[structlog.typing.Processor]:
    # Either way without the frames' local variables, which hold records and secrets.
    if _is_for_people(log):
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
    fields = {**first, **event}
    try:
        return orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # an integer over 64 bits, or half of a surrogate pair
        return json.dumps(fields, default=str, skipkeys=True)
