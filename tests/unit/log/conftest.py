"""A log that tests can read."""

from collections.abc import Iterator

import pytest

from tests.unit.log.events import WrittenLog, written_log


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[WrittenLog]:
    yield from written_log(capsys)
