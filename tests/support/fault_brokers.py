"""What tests of faults share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kworker.sandbox import Options, Sandbox
from kworker.sandbox.sandbox import CONTROLLERS_ABOVE
from tests.support import shared
from tests.support.kafka import SEVERE
from tests.support.proxy import Proxy

# Whoever has no rule may do everything; what is too old is looked for all the time; and what
# no coordinator knows of is taken, as by older brokers, so that a transaction can hang.
STRICT = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "transaction.partition.verification.enable": "false",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
}


# As short as a busy machine allows: of members under either protocol.
SESSION_MS = 4000


@pytest.fixture(scope="session")
def strict(server: Callable[..., Sandbox]) -> str:
    """A broker that can refuse, and on which nothing old is safe."""
    return server("strict", redis=False, properties=STRICT).bootstrap


def deny(bootstrap: str, kind: str, name: str, operation: str, pattern: str = "LITERAL") -> None:
    """Forbids everybody one operation on what has the name; the broker goes by the rule soon."""
    what = ResourceType[kind], name, ResourcePatternType[pattern]
    rule = AclBinding(*what, "User:*", "*", AclOperation[operation], AclPermissionType.DENY)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": SEVERE})
    admin.create_acls([rule])[rule].result(30)


@dataclass(frozen=True)
class Proxied:
    """A broker with two listeners: one for bystanders, and one whose clients meet the proxy."""

    bootstrap: str
    through: str
    proxy: Proxy
    data: Path  # the broker's own logs


@pytest.fixture(scope="session")
def proxied_broker(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Proxied]:
    """Not for the whole session's processes: the proxy is a part of this one."""
    folder = tmp_path_factory.mktemp("proxied")
    shared.guard(folder)
    port = free_port()
    behind, proxy_port, controller = port + 1, port + 2, port + CONTROLLERS_ABOVE
    properties = {
        "listeners": ",".join(
            [
                f"PLAINTEXT://127.0.0.1:{port}",
                f"PROXIED://127.0.0.1:{behind}",
                f"CONTROLLER://127.0.0.1:{controller}",
            ]
        ),
        "advertised.listeners": ",".join(
            [f"PLAINTEXT://127.0.0.1:{port}", f"PROXIED://127.0.0.1:{proxy_port}"]
        ),
        "listener.security.protocol.map": ",".join(
            ["PLAINTEXT:PLAINTEXT", "PROXIED:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
        ),
        "group.consumer.session.timeout.ms": str(SESSION_MS),
    }
    sandbox = Sandbox(folder, Options(redis=False, kafka_port=port, properties=properties))
    sandbox.up()
    proxy = Proxy(proxy_port, behind)
    data = folder / "broker-1" / "data"
    yield Proxied(sandbox.bootstrap, f"127.0.0.1:{proxy_port}", proxy, data)
    proxy.close()
    sandbox.down(wipe=True)


@pytest.fixture
def proxied(proxied_broker: Proxied) -> Iterator[Proxied]:
    yield proxied_broker
    proxied_broker.proxy.let_all_go()
