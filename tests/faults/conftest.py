"""What tests of faults share."""

from collections.abc import Callable

import pytest

Topic = Callable[..., str]


@pytest.fixture
def results(topic: Topic) -> str:
    """Where results go; stamped when they are appended, which the client cannot choose."""
    return topic("proof-results", message_timestamp_type="LogAppendTime")
