"""kworker's own topics: what they are called, and how they are to be created. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kworker.config.model import Config
from kworker.core.duration import parse_duration

# A record that waits or is dead carries more headers than the one it was.
HEADROOM_BYTES = 64 * 1024
BYTES_MAX = "max.message.bytes"
IN_SYNC = "min.insync.replicas"
SETTINGS = (
    BYTES_MAX,
    IN_SYNC,
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
)
"""The topic settings that kworker looks at."""
NEVER_READ = (r"^.*\.results$", r"^.*\.retry\..*$", r"^.*\.dead(\.state)?$")
"""What a regular expression must never read as a source: the topics of kworker services."""
_OF_A_SERVICE = re.compile("|".join((*NEVER_READ, r"^.*\.requeue$")))


class TopicInfo(NamedTuple):
    """A topic as it is; `config` holds what was asked for."""

    partitions: int
    replication: int
    config: Mapping[str, str]


class TopicSpec(NamedTuple):
    """A topic as it is to be."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


def source_topics(config: Config, existing: Iterable[str]) -> list[str]:
    """The topics that the service reads: those named, or those of `existing` that match."""
    if not config.source.pattern:
        return config.source.topics
    pattern = re.compile(config.source.pattern)
    # As librdkafka does: the pattern need not reach to the name's end.
    return [name for name in existing if pattern.match(name) and not of_a_service(name)]


def of_a_service(name: str) -> bool:
    """Whether a topic is called as kworker services call their own, which no pattern matches."""
    return _OF_A_SERVICE.match(name) is not None


def own_topics(config: Config) -> list[str]:
    """The topics that the service writes for itself."""
    waiting = dict.fromkeys(config.retry_topic(delay) for delay in config.retry.delays)
    return [config.delivery.results, *waiting, *_lasting(config), config.dead_state_topic]


def written_topics(config: Config) -> list[str]:
    """The topics that a worker writes."""
    waiting = [config.retry_topic(delay) for delay in config.retry.delays]
    written = [config.delivery.results, *config.delivery.topics, *waiting, config.dead_letter.topic]
    return list(dict.fromkeys(written))


def delay_pattern(config: Config) -> str:
    """What the delay topics of this service, configured or not, and no other topics match."""
    # In a topic's name, nothing but a dot means something else in a pattern.
    return f"^{_delay_prefix(config).replace('.', '[.]')}[1-9][0-9]*(ms|s|m|h)$"


def delay_ms(config: Config, topic: str) -> int:
    """How long records stay in a delay topic."""
    return round(parse_duration(topic.removeprefix(_delay_prefix(config))) * 1000)


def _delay_prefix(config: Config) -> str:
    return f"{config.name}.retry."


def _lasting(config: Config) -> list[str]:
    return [config.requeue_topic, config.dead_letter.topic]


def plan(config: Config, sources: Mapping[str, TopicInfo]) -> list[TopicSpec]:
    """How kworker's own topics are to be, given those it reads (at least one).

    They take the most of several sources' partitions, replicas and record sizes. What waits
    or is dead must not expire while the service is down, so its retention is unlimited.
    """
    partitions = max(info.partitions for info in sources.values())
    replication = max(info.replication for info in sources.values())
    in_sync = {IN_SYNC: str(_most(sources, IN_SYNC, 1))}
    lasting = {
        **in_sync,
        BYTES_MAX: str(_most(sources, BYTES_MAX, 1048588) + HEADROOM_BYTES),
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    settings = dict.fromkeys(own_topics(config), lasting)
    settings[config.delivery.results] = in_sync
    settings[config.dead_state_topic] = {**in_sync, "cleanup.policy": "compact"}
    return [TopicSpec(name, partitions, replication, of) for name, of in settings.items()]


def _most(sources: Mapping[str, TopicInfo], setting: str, default: int) -> int:
    return max(int(info.config.get(setting, default)) for info in sources.values())


def differences(spec: TopicSpec, info: TopicInfo) -> list[str]:
    """In what a topic is not as planned: `partitions 1, planned 4`."""
    found = {"partitions": info.partitions, "replication": info.replication, **info.config}
    planned = {"partitions": spec.partitions, "replication": spec.replication, **spec.config}
    return [
        f"{what} {found.get(what, 'unknown')}, planned {value}"
        for what, value in planned.items()
        if str(found.get(what)) != str(value)
    ]
