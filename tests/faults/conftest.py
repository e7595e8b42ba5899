"""What tests of faults share."""

from collections.abc import Callable

import pytest

from kworker.sandbox import Sandbox

# Whoever has no rule may do everything; what is too old is looked for all the time.
STRICT = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
}


@pytest.fixture(scope="session")
def strict(server: Callable[..., Sandbox]) -> str:
    """A broker that can refuse, and on which nothing old is safe."""
    return server("strict", redis=False, properties=STRICT).bootstrap
