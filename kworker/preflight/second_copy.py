"""Finds other copies of an instance: on this host by its lock, on other hosts by group members.

A service that starts makes this search before its first worker joins the consumer group. So if a
copy runs already, the service that starts is refused. The search needs a Kafka client, so the
supervisor runs it in a short-lived child process.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kworker import host
from kworker.config.client_properties import consumer_properties, delay_group, instance_id
from kworker.config.model import Config
from kworker.errors import ExitCode, KworkerError
from kworker.instance.host_lock import LockHolder, holder
from kworker.instance.state_folder import StateFolder
from kworker.preflight.findings import Finding
from kworker.preflight.kafka import admin_of, unanswered
from kworker.preflight.positions import GROUP_TIMEOUT_S

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

_KEY = "instance"


@dataclass(frozen=True, slots=True)
class Twins:
    """Findings about other copies of this instance, and the id of the Kafka cluster.

    `elsewhere` has the findings about members of the consumer groups on other hosts. Such a
    member may be dead; then its group drops it within `session_s` seconds.
    """

    cluster: str = ""
    findings: list[Finding] = field(default_factory=list)
    elsewhere: list[Finding] = field(default_factory=list)
    session_s: float = 0.0


def search(config: Config) -> Twins:
    """Searches for other running copies of this instance.

    The service that runs in this configuration's `state_dir` does not count as another copy.
    """
    try:
        cluster = admin_of(config).cluster_id()
        other = holder(cluster, config)
        return Twins(cluster, here(config, other)) if other else _elsewhere(config, cluster)
    except KworkerError as error:
        return Twins(findings=[unanswered(error)])


def online(config: Config) -> list[Finding]:
    """Returns all findings about other copies, for `kworker check --online`."""
    found = search(config)
    return [*found.findings, *found.elsewhere]


def here(config: Config, other: LockHolder) -> list[Finding]:
    """Returns a finding about `other`, which holds the lock of this instance on this host.

    Returns none if `other` is the supervisor that runs in our `state_dir`.
    """
    if other.pid == StateFolder(config.state_dir).supervisor_pid():
        return []
    if not other.alive:
        what = f"the workers of a supervisor that was killed (pid {other.pid}) are still draining"
        step = "they end within their drain_timeout"
        return [Finding(_KEY, what, step, ExitCode.UNREACHABLE)]
    as_pid = f"as pid {other.pid}" if other.pid else "in a process that cannot be seen from here"
    with_file = f"with {other.file}" if other.file else "which does not answer"
    return [
        Finding(
            _KEY,
            f"{config.name} runs on this host already as instance {config.instance}, {as_pid},"
            f" {with_file}",
            "stop that copy, or give this one another name as its `instance`",
            ExitCode.ALREADY_RUNNING,
        )
    ]


def _elsewhere(config: Config, cluster: str) -> Twins:
    """Searches the consumer groups for copies of this service on other hosts.

    Only static members can be recognised.
    """
    if config.workers.membership != "static":
        return Twins(cluster)
    from kworker.clients.admin_connection import AdminRequestError

    session_ms = consumer_properties(config, slot=0)["session.timeout.ms"]
    try:
        # One member is enough: the others are of the same copy.
        member = next(_members(config, admin_of(config, GROUP_TIMEOUT_S)), None)
    except AdminRequestError as refused:
        unseen = Finding(
            _KEY,
            f"the members of the consumer group cannot be listed ({refused})",
            f"grant DESCRIBE on the groups {config.name} and {delay_group(config)}; until then, a"
            " start or check does not notice a copy of this instance on another host",
            ExitCode.OK,
        )
        return Twins(cluster, [unseen])
    return Twins(cluster, [], [member] if member else [], int(session_ms) / 1000)


def _members(config: Config, admin: "Admin") -> Iterator[Finding]:
    ours = re.compile(re.escape(instance_id(config, 0)).removesuffix("0") + r"(\d+|delay)")
    mark = f".{host.fingerprint()}"
    for group in (config.name, delay_group(config)):
        for member in admin.members(group):
            if ours.fullmatch(member.instance_id) and not member.client_id.endswith(mark):
                yield Finding(
                    _KEY,
                    f"{config.instance} is in use: {member.instance_id} is a member of the group"
                    f" {group} from the host {member.host} (client id {member.client_id})",
                    "stop that copy, or give this one another name as its `instance`",
                    ExitCode.ALREADY_RUNNING,
                )
