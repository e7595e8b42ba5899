"""A service for each test, gone after it; and one for those that only look."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bare_service import Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("shared"))
    made.serve()
    yield made
    made.end()
