"""Checks of the groups' committed positions, and the commit of the first ones."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kworker.config.client_properties import delay_group, speaks_new_protocol
from kworker.config.model import Config
from kworker.config.topics import delay_pattern, source_topics
from kworker.errors import ExitCode, KworkerError
from kworker.instance.group_note import GroupNote, lost_partitions
from kworker.preflight.findings import Finding
from kworker.preflight.kafka import admin_of, unanswered

if TYPE_CHECKING:
    from kworker.clients.admin import Admin

# The first group of a new cluster waits until the brokers have made its topic of positions.
GROUP_TIMEOUT_S = 30.0


def check_positions(config: Config) -> list[Finding]:
    """Checks the committed positions and the session time-out of the service.

    Returns a finding for each group with a hidden position: Kafka does not report a position while
    an open transaction is to change it. Returns a hint if the session time-out is too long.
    """
    try:
        admin = admin_of(config)
        existing = admin.topic_names()
        pattern = re.compile(delay_pattern(config))
        groups = {
            config.name: [*source_topics(config, existing), config.requeue_topic],
            delay_group(config): [name for name in existing if pattern.match(name)],
        }
        found = [
            _hidden(group, hidden)
            for group, topics in groups.items()
            if (hidden := admin.hidden_positions(group, _partitions(admin, topics)))
        ]
        return [*found, *_long_sessions(config, admin)]
    except KworkerError as error:
        return [unanswered(error)]


def _partitions(admin: "Admin", topics: Sequence[str]) -> list[tuple[str, int]]:
    known = admin.topics(topics)
    return [(name, number) for name in known for number in range(known[name].partitions)]


def _hidden(group: str, hidden: Sequence[tuple[str, int]]) -> Finding:
    names = ", ".join(f"{topic}/{number}" for topic, number in hidden)
    return Finding(
        group,
        f"the committed position of {names} is hidden by a transaction that has not ended: brokers"
        " answer, but do not tell it",
        "wait until it ends; if kworker transactions list says that it hangs, end it with"
        " kworker transactions abort",
        ExitCode.UNREACHABLE,
    )


_SESSION = "group.consumer.session.timeout.ms"
_SESSION_MS = 15_000  # a killed worker's partitions should move after about ten seconds


def _long_sessions(config: Config, admin: "Admin") -> Iterator[Finding]:
    """Yields a hint if the session time-out for `group.protocol=consumer` is too long.

    With this protocol, the brokers set the time-out, not the consumers.
    """
    if not speaks_new_protocol(config):
        return
    session_ms = int(admin.broker_setting(_SESSION) or 0)
    if session_ms > _SESSION_MS:
        yield Finding(
            "kafka.consumer.group.protocol",
            f"{_SESSION} of the brokers is {session_ms} ms: the partitions of a killed worker have"
            " no owner for that time",
            f"set {_SESSION} to 10000 on the brokers, or, where kafka-configs is at hand, for this"
            " group alone: kafka-configs --alter --entity-type groups --entity-name"
            f" {config.name} --add-config consumer.session.timeout.ms=10000 (not below"
            " group.consumer.min.session.timeout.ms of the brokers)",
            ExitCode.OK,
        )


def ensure_start_offsets(config: Config) -> list[Finding]:
    """Commits positions for all partitions at the group's first start, before any record is read.

    So `source.start` takes effect once. A note in `state_dir` says which partitions had positions.
    If one of these positions is lost later, returns a finding: to read from any other offset would
    silently skip or repeat records.
    """
    note = GroupNote(config.state_dir)
    try:
        admin = admin_of(config, GROUP_TIMEOUT_S)
        topics = admin.topics(source_topics(config, admin.topic_names()))
        partitions = [(name, n) for name, info in topics.items() for n in range(info.partitions)]
        if hidden := admin.hidden_positions(config.name, partitions):
            return [_hidden(config.name, hidden)]
        held = set(admin.group_offsets(config.name, partitions))
        ids = admin.identities(topics)
        if gone := lost_partitions(
            note.positions(), [at for at in partitions if at not in held], ids
        ):
            return [_lost_offsets(config, gone if held else [])]
        if not held:
            if note.exists:
                return [_lost_offsets(config, [])]
            if config.source.start == "fail":
                return [_must_not_choose(config)]
            positions = admin.list_offsets(partitions, config.source.start)
            admin.set_group_offsets(config.name, positions)
            held = set(positions)
        note.write(config.name, admin.cluster_id(), held, ids)
    except KworkerError as error:
        return [unanswered(error)]
    return []


def _lost_offsets(config: Config, gone: Sequence[tuple[str, int]]) -> Finding:
    """Returns the finding that the group has lost its positions in the partitions `gone`.

    If `gone` is empty, the group has lost its positions in all partitions.
    """
    of_these = f" of {', '.join(f'{topic}/{number}' for topic, number in gone)}" if gone else ""
    each = " in each of these partitions (--topic, --partition)" if gone else ""
    return Finding(
        "source.start",
        f"the group {config.name} ran before and has no positions{of_these} now: they expired or"
        " were deleted, or its source topics were deleted and made again",
        f"run `kworker offsets reset` to choose where the group goes on{each}; or remove"
        f" {GroupNote(config.state_dir).path} to begin as at a first start",
        ExitCode.UNREACHABLE,
    )


def _must_not_choose(config: Config) -> Finding:
    return Finding(
        "source.start",
        f'the group {config.name} has no positions yet, and source.start = "fail" chooses none',
        "set source.start to earliest or latest, or use kworker offsets reset",
    )
