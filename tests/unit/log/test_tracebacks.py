"""A traceback in the log has no secrets."""

import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from kworker.config.model import LogSettings
from kworker.log import configure

CANARY = "canary-5f1e"


def _fails(password: str) -> None:
    order = {"card": password}
    raise KeyError(len(order))


@pytest.fixture
def _log_of_the_session() -> Iterator[None]:
    """Is there again after a test that configures another."""
    root, configured = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**configured)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_log_of_the_session")
@pytest.mark.parametrize("style", ["console", "json"])
def test_a_traceback_has_no_local_variables(
    style: Literal["console", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    """They hold records and secrets; the lines of the code are what a person needs."""
    configure(LogSettings(format=style, level="debug"))
    try:
        _fails(CANARY)
    except KeyError:
        structlog.get_logger().exception("a handler failed")
        logging.getLogger("library").exception("a library failed")
    written = capsys.readouterr().err
    assert CANARY not in written
    assert written.count("_fails") >= 2
    assert "\x1b" not in written
