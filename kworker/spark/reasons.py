"""Spark's exceptions, pages long, in one line that says what is wrong."""

import re
from collections.abc import Sequence

from pyspark.errors import AnalysisException, ParseException

from kworker.config.model import TableSettings
from kworker.spark.checkpoints.checkpoint import damaged_state
from kworker.spark.checkpoints.folders import LocalFolder, local_folder
from kworker.spark.checkpoints.guard import next_step

REASON_CHARS_MAX = 300

_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")
_WRAPPER = re.compile(r"terminated with exception: ")
_PYTHON_CAUSE = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception|Exit|Interrupt)\b.*)", re.M)
_OWN_CAUSE = re.compile(r"^kworker\.[\w.]+: (.*)", re.M)
_NO_RIGHT = re.compile(
    r"DELTA_CANNOT_CREATE_LOG_PATH|AccessDenied|AccessControl|Permission denied|not permitted"
    r"|status code: 403"
)
_JAVA_CLASS = re.compile(r"^(?:[a-z][\w$]*\.)+([A-Z][\w$]*: )")
_TRACEBACK = "Traceback (most recent call last)"
_CALLED = re.compile(r"An error occurred while calling [^\n]*\n: ")
_CAUSED = re.compile(r"^Caused by: (.*)$", re.M)
_NOT_THERE = re.compile(
    r"\[(?:PATH_NOT_FOUND|TABLE_OR_VIEW_NOT_FOUND|SCHEMA_NOT_FOUND|UNABLE_TO_INFER_SCHEMA"
    r"|DELTA_PATH_DOES_NOT_EXIST|DELTA_TABLE_NOT_FOUND|DELTA_MISSING_DELTA_TABLE"
    r"|DELTA_SCHEMA_NOT_SET)\]"
)


def is_mistake(error: BaseException) -> bool:
    """True if Spark refused a query because the query is wrong, so that waiting cannot help.

    False for all other errors, among them two kinds that may pass. An error with a Java cause
    reports what failed outside of the query, such as a catalog that does not answer. A table or
    path that does not exist may appear later: its disk may not be mounted yet, or another job may
    be replacing it.
    """
    if isinstance(error, ParseException):
        return True
    # The only place where pyspark keeps the cause of a Java exception.
    failed_outside = getattr(error, "_cause", None) is not None
    refused = isinstance(error, AnalysisException) and not failed_outside
    return refused and not _NOT_THERE.match(str(error))


def reason(error: BaseException) -> str:
    """Returns the first meaningful line of an exception.

    It begins with the exception's name, unless Spark gave an error code. A Java exception keeps its
    Java name, and its root cause is added.
    """
    text = shortened(str(error))
    if not (text.startswith("[") or _CALLED.search(str(error)) or _TRACEBACK in str(error)):
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    return _with_step(text)


def _with_step(text: str) -> str:
    """Adds to the text what the user must do, if it reports a missing permission."""
    if _NO_RIGHT.search(text):
        return f"{text}: let the user that runs the job write there, or name another place"
    return text


def shortened(text: str) -> str:
    """Returns the one line that names the cause, from an error text that may be pages long."""
    text = _WRAPPER.split(text)[-1]
    if own := _OWN_CAUSE.findall(text):
        return str(own[-1])[:REASON_CHARS_MAX]
    if called := _CALLED.search(text):
        raised = text[called.end() :]
        return _with_root([raised, *_CAUSED.findall(raised)])
    if _TRACEBACK in text:
        causes = _PYTHON_CAUSE.findall(text)
        text = causes[-1] if causes else text
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line), "")
    return _JAVA_CLASS.sub(r"\1", _SQLSTATE.sub("", first))[:REASON_CHARS_MAX]


def _with_root(causes: Sequence[str]) -> str:
    why, root = shortened(causes[0]), shortened(causes[-1])
    return why if root in why else f"{why} ({root})"


_LOSS = re.compile(r"Some data may have been lost because.*?Reason:\s*([^\n]+)", re.S)
_CHECKPOINT = re.compile(r"CANNOT_LOAD_STATE_STORE|ChecksumException|Incomplete log file")


def explained(table: TableSettings, checkpoint: str, causes: Sequence[str]) -> str:
    """Explains in one line why a table's query ended.

    `causes` has the texts of the query's exception and of the exceptions that caused it, down to
    the root cause. If waiting cannot help, the line also says what the user must do. May read all
    state files of the checkpoint.
    """
    text = "\n".join(causes)
    if loss := _LOSS.search(text):
        lost = f"Kafka no longer has results that the table lacks ({loss[1].strip()})"
        return f"{lost}: to go on with what is left, {next_step(table, 'committed')}"
    line = _with_step(_with_root(causes))
    if not _CHECKPOINT.search(text):
        return line
    # Other file systems keep no checksum files: they have checksums of their own.
    folder = local_folder(checkpoint)
    damaged = damaged_state(LocalFolder(folder)) if folder else None
    where = f"; {damaged} does not match its checksum" if damaged else f"; see {checkpoint}"
    return f"{line}{where}: {next_step(table, 'earliest')}"
