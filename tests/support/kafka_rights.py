"""Rights in Kafka: those that SECURITY.md lists, and how a user gets some."""

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.support.kafka import SEVERE
from tests.support.service import ROOT
from tests.support.waiting import eventually

Right = tuple[ResourceType, str, ResourcePatternType, AclOperation]
"""A kind of resource, its name or the beginning of that, and what may be done with it."""

EVERYTHING: list[Right] = [
    (kind, name, ResourcePatternType.LITERAL, AclOperation.ALL)
    for kind, name in [
        (ResourceType.TOPIC, "*"),
        (ResourceType.GROUP, "*"),
        (ResourceType.TRANSACTIONAL_ID, "*"),
        (ResourceType.BROKER, "kafka-cluster"),
    ]
]
_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}


def documented_rights() -> list[Right]:
    """Those that SECURITY.md lists for the service `orders`, as arguments of `kafka-acls.sh`."""
    text = (ROOT / "SECURITY.md").read_text()
    lines = re.findall(r"^\$allow (.*?)(?: +#.*)?$", text, re.MULTILINE)
    return [right for line in lines for right in _rights(shlex.split(line))]


def _rights(arguments: Sequence[str]) -> Iterator[Right]:
    parser = argparse.ArgumentParser()
    for named in ("--topic", "--group", "--transactional-id"):
        parser.add_argument(named)
    parser.add_argument("--resource-pattern-type", default="literal")
    parser.add_argument("--operation", action="append", required=True)
    given = vars(parser.parse_args(arguments))
    [(kind, name)] = [(_KINDS[each], given[each]) for each in _KINDS if given[each] is not None]
    pattern = ResourcePatternType[given["resource_pattern_type"].upper()]
    for operation in given["operation"]:
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()
        yield kind, name, pattern, AclOperation[snake]


def grant(bootstrap: str, user: str, rights: Sequence[Right]) -> None:
    """Returns when the broker goes by them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": SEVERE})
    principal = f"User:{user}"
    rules = [
        AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operation in rights
    ]
    for created in admin.create_acls(rules).values():
        created.result(30)
    any_resource = ResourceType.ANY, None, ResourcePatternType.ANY
    its = AclBindingFilter(*any_resource, principal, None, AclOperation.ANY, AclPermissionType.ANY)
    eventually(lambda: len(admin.describe_acls(its).result(30)) == len(set(rights)))
