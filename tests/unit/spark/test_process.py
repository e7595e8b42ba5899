"""What the process of the Spark job says of itself."""

import logging
from collections.abc import Iterator

import py4j.java_gateway as bridge
import pytest

from kworker.spark.process import quieten_py4j


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    names = (None, "py4j", "py4j.clientserver")
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    logger = logging.getLogger()
    filters = list(logger.filters)
    yield logger
    logger.filters[:] = filters
    for each, level in before:
        each.setLevel(level)


def test_py4j_errors_after_the_jvm_is_gone_are_not_logged(
    root: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    """It would end many an ordinary stop with a stack, on the root logger."""
    root.setLevel(logging.INFO)
    quieten_py4j()
    for file in (bridge.__file__, __file__):
        told = root.makeRecord("root", logging.INFO, file, 1, "Exception while sending", (), None)
        root.handle(told)
    assert [record.pathname for record in caplog.records] == [__file__]
