"""What tests of faults share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kworker.sandbox import Options, Sandbox

Topic = Callable[..., str]
# Whoever has no rule may do everything; what is too old is looked for all the time.
STRICT = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
}


@pytest.fixture
def results(topic: Topic) -> str:
    """Where results go; stamped when they are appended, which the client cannot choose."""
    return topic("proof-results", message_timestamp_type="LogAppendTime")


@pytest.fixture(scope="package")
def strict(
    tmp_path_factory: pytest.TempPathFactory,
    free_port: Callable[[], int],
    guarded: Callable[[Path], None],
) -> Iterator[str]:
    """A broker that can refuse, and on which nothing old is safe."""
    folder = tmp_path_factory.mktemp("strict")
    guarded(folder)
    sandbox = Sandbox(folder, Options(kafka_port=free_port(), redis=False, properties=STRICT))
    sandbox.up()
    yield sandbox.bootstrap
    sandbox.down(wipe=True)
