"""Makes events of the lines that a worker prints: a plain line would break readers of a JSON log.

Python's `sys.stdout` and `sys.stderr` are replaced. So events are made of all that Python code
writes there, tracebacks included. Native code, child programs and `sys.stdout.buffer` write to the
descriptors themselves: their lines stay as they are.
"""

import json
import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO, cast

_LINE_MAX = 1 << 16
"""Characters; a longer line becomes several events."""


class PrintedLines:
    """A standard stream whose lines become INFO events of the logger `print`.

    Each thread has a line of its own, since `print` writes a line in several parts. A line that is
    a JSON object passes as it is: it is from a log of the user's code. All attributes that are not
    defined here are those of the stream.
    """

    def __init__(self, stream: TextIO, logger: Any) -> None:
        self.stream = stream
        self._logger = logger
        self._begun: dict[int, str] = {}  # by thread, what has no line break yet

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        *lines, begun = (self._begun.pop(thread, "") + text).split("\n")
        if len(begun) > _LINE_MAX:
            lines.append(begun)
        elif begun:
            self._begun[thread] = begun
        for line in lines:
            self._pass_on(line)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Writes this thread's unfinished line; in the main thread, those of all threads."""
        if threading.current_thread() is threading.main_thread():
            begun, self._begun = self._begun, {}
            for line in begun.values():
                self._pass_on(line)
        else:
            self._pass_on(self._begun.pop(threading.get_ident(), ""))
        self.stream.flush()

    def _pass_on(self, line: str) -> None:
        if _is_json_object(line):
            self.stream.write(line + "\n")
        elif line.strip():
            self._logger.info(line.rstrip("\r"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def capture(logger: Any) -> None:
    """Turns what this process prints into log lines. Called at the start of a process.

    `logger` must not write to `sys.stdout` or `sys.stderr`, but to `real_stderr()`.
    """
    sys.stdout = cast(TextIO, PrintedLines(sys.stdout, logger))
    sys.stderr = cast(TextIO, PrintedLines(sys.stderr, logger))


def real_stderr() -> TextIO:
    """Returns the stream that log lines are written to."""
    stream: TextIO | PrintedLines = sys.stderr
    return stream.stream if isinstance(stream, PrintedLines) else stream


def _is_json_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
