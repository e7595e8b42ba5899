"""The names of a service's topics, and the settings of those that kworker creates. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kworker.config.model import Config
from kworker.core.duration import parse_duration

# A delayed record or dead letter carries more headers than its source record.
HEADROOM_BYTES = 64 * 1024
BYTES_MAX = "max.message.bytes"
_BYTES_MAX_LARGEST = (1 << 31) - 1  # the largest value that Kafka takes
IN_SYNC = "min.insync.replicas"
SETTINGS = (
    BYTES_MAX,
    IN_SYNC,
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
)
"""The topic settings that kworker reads."""
NEVER_READ = (r"^.*\.results$", r"^.*\.retry\..*$", r"^.*\.dead(\.state)?$")
"""Topics of kworker services, which no regular expression of source topics may match."""
_OF_A_SERVICE = re.compile("|".join((*NEVER_READ, r"^.*\.requeue$")))


class TopicInfo(NamedTuple):
    """An existing topic. `config` has the values of those settings that the caller asked for."""

    partitions: int
    replication: int
    config: Mapping[str, str]


class TopicSpec(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


def source_topics(config: Config, existing: Iterable[str]) -> list[str]:
    """Returns the topics that the service reads.

    They are listed in the configuration, or are the `existing` topics that match its pattern.
    Topics that belong to a kworker service do not count as matches.
    """
    if not config.source.pattern:
        return config.source.topics
    pattern = re.compile(config.source.pattern)
    # As in Kafka's client: it need not match the whole name, and `topic_pattern` has refused what
    # the client reads otherwise.
    return [name for name in existing if pattern.match(name) and not of_a_service(name)]


def of_a_service(name: str) -> bool:
    """Returns True if a topic is named like a kworker service's own, such as `orders.results`."""
    return _OF_A_SERVICE.match(name) is not None


def own_topics(config: Config) -> list[str]:
    """Returns the topics that kworker creates for the service."""
    waiting = dict.fromkeys(config.retry_topic(delay) for delay in config.retry.delays)
    return [config.delivery.results, *waiting, *_lasting(config), config.dead_state_topic]


def written_topics(config: Config) -> list[str]:
    """The topics that a worker writes."""
    waiting = [config.retry_topic(delay) for delay in config.retry.delays]
    written = [config.delivery.results, *config.delivery.topics, *waiting, config.dead_letter.topic]
    return list(dict.fromkeys(written))


def delay_pattern(config: Config) -> str:
    """Returns a regular expression that matches this service's delay topics.

    It also matches the topics of delays that are no longer configured.
    """
    # A dot is the only character of topic names that has a meaning in a pattern.
    return f"^{_delay_prefix(config).replace('.', '[.]')}[1-9][0-9]*(ms|s|m|h)$"


def delay_ms(config: Config, topic: str) -> int:
    """Returns the delay of a delay topic, in milliseconds, from its name."""
    return round(parse_duration(topic.removeprefix(_delay_prefix(config))) * 1000)


def _delay_prefix(config: Config) -> str:
    return f"{config.name}.retry."


def _lasting(config: Config) -> list[str]:
    return [config.requeue_topic, config.dead_letter.topic]


def plan(config: Config, sources: Mapping[str, TopicInfo]) -> list[TopicSpec]:
    """Plans the topics that kworker creates; there must be at least one source topic.

    Each planned topic has the largest partition count and the largest replication factor of the
    source topics. The topics of delayed records, requeued records and dead letters accept larger
    records than any source topic. These topics keep records without limit, so that no record
    expires while the service is down.
    """
    partitions = max(info.partitions for info in sources.values())
    replication = max(info.replication for info in sources.values())
    size = _most(sources, BYTES_MAX, 1048588) + HEADROOM_BYTES
    in_sync = {IN_SYNC: str(_most(sources, IN_SYNC, 1))}
    lasting = {
        **in_sync,
        BYTES_MAX: str(min(size, _BYTES_MAX_LARGEST)),
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
    """Returns the differences of a topic from its plan, such as `partitions 1, planned 4`."""
    found = {"partitions": info.partitions, "replication": info.replication, **info.config}
    planned = {"partitions": spec.partitions, "replication": spec.replication, **spec.config}
    return [
        f"{what} {found.get(what, 'unknown')}, planned {value}"
        for what, value in planned.items()
        if str(found.get(what)) != str(value)
    ]
