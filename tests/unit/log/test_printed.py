"""What handlers print: events, so that each line of the log is JSON."""

import sys
import threading

import pytest
import structlog

from kworker import log
from kworker.config.model import LogSettings
from tests.unit.log.events import WrittenLog

JSON = LogSettings(format="json")


def test_a_printed_line_is_an_event_of_the_logger_print(written: WrittenLog) -> None:
    log.capture_prints(JSON)
    print("order", 7)
    print("oh\nno", file=sys.stderr)
    events = written.events()
    assert [event["event"] for event in events] == ["order 7", "oh", "no"]
    assert {(event["level"], event["logger"]) for event in events} == {("info", "print")}


def test_the_begun_lines_of_two_threads_do_not_mix(written: WrittenLog) -> None:
    log.capture_prints(JSON)
    print("a", end="")
    other = threading.Thread(target=print, args=("b",))
    other.start()
    other.join()
    print("c")
    assert [event["event"] for event in written.events()] == ["b", "ac"]


def test_a_begun_line_is_written_at_the_last_flush(written: WrittenLog) -> None:
    """The process ends after that, whichever thread has printed."""
    log.capture_prints(JSON)
    other = threading.Thread(target=lambda: print("half", end=""))
    other.start()
    other.join()
    assert written.events() == []
    sys.stdout.flush()
    assert [event["event"] for event in written.events()] == ["half"]


def test_a_printed_json_object_passes_as_it_is(
    written: WrittenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's code has a log of its own in JSON."""
    log.capture_prints(JSON)
    print('{"mine": 1}')
    print("{no json}")
    captured = capsys.readouterr()
    assert captured.out == '{"mine": 1}\n'
    assert '"event":"{no json}"' in captured.err


def test_a_structlog_that_prints_makes_no_circle(written: WrittenLog) -> None:
    """The user's code configures structlog like this, and its lines are printed, too."""
    log.capture_prints(JSON)
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.PrintLoggerFactory(),
    )
    structlog.get_logger().warning("order")
    [event] = written.events()
    assert (event["event"], event["logger"]) == ("event='order'", "print")


def test_a_console_log_leaves_prints_alone(capsys: pytest.CaptureFixture[str]) -> None:
    log.capture_prints(LogSettings(format="console"))
    print("order 7")
    assert capsys.readouterr().out == "order 7\n"


def test_a_captured_stream_is_the_stream_in_all_else(written: WrittenLog) -> None:
    """Faulthandler asks for the descriptor, and libraries for the encoding."""
    before = sys.stderr
    log.capture_prints(JSON)
    assert sys.stderr.encoding == before.encoding
    assert sys.stderr.isatty() == before.isatty()
