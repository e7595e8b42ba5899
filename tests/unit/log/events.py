"""The events that a test writes to the log, in JSON."""

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from kworker import log
from kworker.config.model import LogSettings


class WrittenLog:
    """What this process has written to its log since `configure`."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def configure(self, **settings: Any) -> None:
        log.configure(LogSettings(format="json", **settings))

    def events(self) -> list[dict[str, Any]]:
        """Returns the new events. Raises ValueError if a line is no JSON.

        Leaves out those of tests of Spark that ran before in this process: their connections log
        that they close, once they are garbage.
        """
        events = map(json.loads, self._captured.readouterr().err.splitlines())
        return [event for event in events if event.get("logger") != "py4j.clientserver"]


def written_log(captured: pytest.CaptureFixture[str]) -> Iterator[WrittenLog]:
    """Yields a configured log; afterwards the process logs as before."""
    root, streams = logging.getLogger(), (sys.stdout, sys.stderr)
    before = root.handlers[:], root.level
    written = WrittenLog(captured)
    written.configure()
    yield written
    written.configure()  # so that no logger keeps a level
    log.identify()
    sys.stdout, sys.stderr = streams
    structlog.reset_defaults()
    logging.setLogRecordFactory(logging.LogRecord)
    root.handlers[:], level = before
    root.setLevel(level)
