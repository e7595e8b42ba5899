"""Lines of handlers and libraries: what they carry, and that none breaks the record."""

import logging

import pytest
import structlog

from kworker.log.setup import _Forward
from tests.unit.log.events import WrittenLog


def test_a_line_of_logging_is_an_event_with_its_logger(written: WrittenLog) -> None:
    logging.getLogger("handlers").warning("order %d", 7, extra={"customer": "c1"})
    [event] = written.events()
    assert (event["event"], event["level"], event["logger"]) == ("order 7", "warning", "handlers")
    assert event["customer"] == "c1"
    assert event.keys() >= {"timestamp", "pid"}


def test_an_exception_is_in_the_line_of_its_event(written: WrittenLog) -> None:
    """Tracebacks over several lines would be no JSON."""
    try:
        raise ZeroDivisionError("no")
    except ZeroDivisionError:
        logging.getLogger("handlers").exception("failed")
    [event] = written.events()
    assert event["level"] == "error"
    assert event["exception"][0]["exc_type"] == "ZeroDivisionError"


class Unshown:
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(("text", "argument"), [("%d", "x"), ("%s", Unshown())])
def test_a_line_with_a_mistake_raises_nothing(
    written: WrittenLog,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    argument: object,
) -> None:
    """The record would fail for a mistake in a line about it."""
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, _Forward)]
    monkeypatch.setattr(root, "handlers", ours)  # pytest's own raises
    logging.getLogger("handlers").warning(text, argument)
    assert "Logging error" in capsys.readouterr().err


@pytest.mark.parametrize("value", [1 << 70, "\udcff"])
def test_any_value_of_python_can_be_written(written: WrittenLog, value: object) -> None:
    """orjson takes no integer over 64 bits, and no half of a surrogate pair."""
    logging.getLogger("handlers").warning("order", extra={"value": value})
    assert [event["value"] for event in written.events()] == [value]


@pytest.mark.parametrize("name", ["self", "level", "event", "logger"])
def test_a_field_may_have_any_name(written: WrittenLog, name: str) -> None:
    logging.getLogger("handlers").warning("order", extra={name: "mine"})
    assert [event["event"] for event in written.events()] == ["order"]


def test_a_structlog_that_passes_on_to_logging_makes_no_circle(written: WrittenLog) -> None:
    """The user's code configures structlog like this, and then writes a line."""
    structlog.configure(
        processors=[structlog.stdlib.render_to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    structlog.get_logger("handlers").warning("order", customer="c1")
    [event] = written.events()
    assert (event["event"], event["customer"]) == ("order", "c1")


def test_levels_between_those_of_structlog_are_the_lower(written: WrittenLog) -> None:
    logging.getLogger("handlers").log(25, "notice")
    assert [event["level"] for event in written.events()] == ["info"]


def test_what_the_tracing_sdk_logs_is_a_warning_and_not_repeated(written: WrittenLog) -> None:
    """The service goes on without a collector; errors are dead letters and the like."""
    for seconds in range(20):
        logging.getLogger("opentelemetry.exporter.otlp").error("failed after %d s", seconds)
    logging.getLogger("opentelemetry_of_mine").error("mine")
    assert [event["level"] for event in written.events()] == ["warning", "error"]


def test_a_named_logger_of_structlog_names_its_events(written: WrittenLog) -> None:
    structlog.get_logger("handlers").info("order")
    assert [event["logger"] for event in written.events()] == ["handlers"]
